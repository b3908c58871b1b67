"""What roles may do on Postgres: their rights on the tables, and row security by namespace.

Rights are given by one text of SQL, which the command line prints and the docs show. Row security
is a policy on each table, by which a role sees the namespace of its own name: nothing that can be
set on a connection is asked, so it holds behind any pooler, and a statement that finds its rows by
the namespace, as all of ours do, is planned as before.

Policies that allow are joined by OR, and reach a role through membership too. So what keeps a
tenant in its namespace is one that restricts, and it holds for whatever else the tenant is made a
member of; the text refuses a tenant who could become somebody else.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import DDL, Connection, Table, text
from sqlalchemy.schema import ExecutableDDLElement

from turnkeep.entries import key_fault
from turnkeep.errors import InvalidArgument, Unavailable
from turnkeep.tables import VERSION_TABLE, metadata

APPEND: Mapping[str, str] = {
    "turnkeep_sessions": "SELECT, INSERT, UPDATE (updated_at, last_position, last_recorded_at)",
    "turnkeep_entries": "SELECT, INSERT",
    "turnkeep_blobs": "SELECT, INSERT",
    "turnkeep_attachments": "SELECT, INSERT",
    VERSION_TABLE: "SELECT",
}
"""What all who append and read need of each table."""

DELETE: Mapping[str, str] = {
    "turnkeep_sessions": "DELETE",
    "turnkeep_entries": "DELETE",
    "turnkeep_blobs": "DELETE, UPDATE (size)",  # a delete locks a blob's row, which takes an UPDATE
    "turnkeep_attachments": "DELETE",
}
"""What those need more who delete."""

IS_OWN = "namespace = CURRENT_USER::text"

ON = (
    "DROP POLICY IF EXISTS turnkeep_namespace ON %(fullname)s",
    f"CREATE POLICY turnkeep_namespace ON %(fullname)s USING ({IS_OWN})",
    "ALTER TABLE %(fullname)s ENABLE ROW LEVEL SECURITY",
)
OFF = (
    "ALTER TABLE %(fullname)s DISABLE ROW LEVEL SECURITY",
    "DROP POLICY IF EXISTS turnkeep_namespace ON %(fullname)s",
)
TENANTS_OFF = (
    "REVOKE ALL ON %(fullname)s FROM {tenants}",
    "DROP POLICY turnkeep_tenants ON %(fullname)s",
)
FROM_OURS = (
    "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.relname::text = ANY (cast(:names AS text[])) AND c.relkind IN ('r', 'p')"
    " AND CASE WHEN cast(:schema AS text) IS NULL THEN pg_table_is_visible(c.oid)"
    " ELSE n.nspname = :schema END"
)
STATE = text(
    "SELECT c.relname, c.relrowsecurity,"  # noqa: S608 (a constant)
    " EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND polname = 'turnkeep_namespace'),"
    " ARRAY(SELECT r.rolname::text FROM pg_policy p JOIN pg_roles r ON r.oid = ANY (p.polroles)"
    " WHERE p.polrelid = c.oid AND p.polname = 'turnkeep_tenants')"
    f" {FROM_OURS}"
)
# A policy shows a namespace whole where it says `true`, or is one of ours and the namespace is the
# role's own; to the group of the tenants theirs shows none. What others show can't be told.
HIDDEN = text(
    f"SELECT EXISTS (SELECT {FROM_OURS} AND row_security_active(c.oid)"  # noqa: S608
    " AND EXISTS (SELECT FROM unnest(cast(:commands AS text[])) AS command WHERE ("
    "SELECT bool_or(shows) FILTER (WHERE allows) IS NOT TRUE"
    " OR bool_and(shows) FILTER (WHERE NOT allows) IS FALSE"
    " FROM (SELECT p.polpermissive AS allows, pg_get_expr(p.polqual, p.polrelid) = 'true'"
    " OR p.polname IN ('turnkeep_namespace', 'turnkeep_tenants')"
    " AND coalesce(cast(:namespace AS text) = CURRENT_USER::text, false)"
    " AND (SELECT oid FROM pg_roles WHERE rolname = CURRENT_USER) <> ALL (p.polroles) AS shows"
    " FROM pg_policy p WHERE p.polrelid = c.oid AND p.polcmd::text IN ('*', command)"
    " AND EXISTS (SELECT FROM unnest(p.polroles) AS role"
    " WHERE role = 0 OR pg_has_role(role, 'USAGE'))) AS policies)))"
)

GUARD = """\
-- No tenant may see more: without row security, as one who serves all, or as another tenant.
DO ${tag}$
DECLARE
    tenants CONSTANT regrole := {roles};
    tables CONSTANT regclass[] := ARRAY[{tables}];
    others text;
BEGIN
    IF EXISTS (SELECT FROM pg_class WHERE oid = ANY (tables) AND NOT relrowsecurity) THEN
        RAISE USING MESSAGE = 'row security is off: turnkeep db upgrade --row-security comes first';
    END IF;
    SELECT string_agg(quote_ident(r.rolname), ', ') INTO others FROM pg_roles r
    WHERE CASE WHEN r.rolsuper  -- who is a member of every role
        THEN EXISTS (SELECT FROM pg_auth_members WHERE member = r.oid AND roleid = tenants)
        ELSE pg_has_role(r.oid, tenants, 'USAGE') AND EXISTS (
            SELECT FROM pg_roles s WHERE pg_has_role(r.oid, s.oid, 'MEMBER') AND (
                s.rolsuper OR s.rolbypassrls OR s.rolcreaterole
                OR EXISTS (SELECT FROM pg_class WHERE oid = ANY (tables) AND relowner = s.oid)
                OR EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = ANY (tables)
                    AND p.polpermissive AND s.oid = ANY (p.polroles))
                OR s.oid NOT IN (r.oid, tenants) AND pg_has_role(s.oid, tenants, 'USAGE')))
        END;
    IF others IS NOT NULL THEN
        RAISE USING MESSAGE = 'tenants who could see more than their namespace: ' || others;
    END IF;
END ${tag}$;"""

NO_OWNER = """\
-- The owner of a table is none of them: it would lose rights that foreign keys need.
DO ${tag}$
DECLARE
    owners text;
BEGIN
    SELECT string_agg(DISTINCT quote_ident(pg_get_userbyid(relowner)), ', ') INTO owners
    FROM pg_class WHERE oid = ANY (ARRAY[{tables}]::regclass[])
        AND relowner = ANY (ARRAY[{roles}]::regrole[]);
    IF owners IS NOT NULL THEN
        RAISE USING MESSAGE = 'owns a table, and can be its owner only: ' || owners;
    END IF;
END ${tag}$;"""


@dataclass(frozen=True)
class Roles:
    """The roles that are given rights, by what each is to do; None is left out.

    Raises:
        InvalidArgument: none is given, two are the same, or one can't be the name of a role.
    """

    owner: str | None = None
    writer: str | None = None
    recorder: str | None = None
    tenants: str | None = None

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for field in fields(self):
            name = getattr(self, field.name)
            if name is None:
                continue
            fault = name_fault(name)
            if fault is None and name in ("public", "none"):
                fault = "is a word that Postgres keeps for itself, in quotes too"
            if fault is None and name in seen:
                fault = "is another's role too: rights add up"
            if fault:
                raise InvalidArgument(field.name, fault)
            seen.add(name)
        if not seen:
            raise InvalidArgument("writer", "or another role is to be named")


def name_fault(name: object) -> str | None:
    """Why *name* can't be the name of a role or schema; None where it can."""
    if fault := key_fault(name):
        return fault
    if len(str(name).encode()) > 63:
        return "is longer than 63 bytes"
    if str(name).startswith("pg_"):
        return "begins with pg_, which Postgres keeps for itself"
    return None


def grants(roles: Roles, schema: str | None) -> str:
    """The SQL that gives *roles* their rights, and takes from them what is not theirs.

    It is to be run in one transaction. The policies that it makes wait until row security is on.
    """
    schema = "public" if schema is None else schema
    if fault := name_fault(schema):
        raise InvalidArgument("schema", fault)
    place = _quoted(schema)
    tables = {name: f"{place}.{_quoted(name)}" for name in APPEND}
    parts: list[list[str]] = []
    if roles.owner is not None:
        owner = _quoted(roles.owner)
        own = [f"ALTER TABLE IF EXISTS {table} OWNER TO {owner};" for table in tables.values()]
        make = f"GRANT CREATE ON SCHEMA {place} TO {owner};"
        use = f"GRANT USAGE ON SCHEMA {place} TO {owner} WITH GRANT OPTION;"
        parts.append(["-- The owner makes and changes the tables.", make, use, *own])
    if everybody := _names(roles.writer, roles.recorder, roles.tenants):
        every = ", ".join(tables.values())
        use = f"GRANT USAGE ON SCHEMA {place} TO {everybody};"
        reset = f"REVOKE ALL ON {every} FROM PUBLIC, {everybody};"
        given = [each for each in (roles.writer, roles.recorder, roles.tenants) if each is not None]
        parts.append([_block(NO_OWNER, [*tables.values()], given)])
        parts.append(["-- Nothing but what follows.", use, reset])
        append = [f"GRANT {APPEND[name]} ON {tables[name]} TO {everybody};" for name in APPEND]
        parts.append(["-- To append and to read.", *append])
    if deleters := _names(roles.writer, roles.tenants):
        delete = [f"GRANT {DELETE[name]} ON {tables[name]} TO {deleters};" for name in DELETE]
        why = "-- To delete. The UPDATE is for the lock that a delete takes on a blob."
        parts.append([why, *delete])
    with_rows = [tables[name] for name in metadata.tables]
    if everybody:
        wait = "SET LOCAL lock_timeout = '10s';"
        parts.append(["-- A policy takes its table for a moment; others wait behind it.", wait])
    for kind, role in (("writer", roles.writer), ("recorder", roles.recorder)):
        if role is not None:
            why = f"-- Under row security, the {kind} serves all namespaces."
            what = f"TO {_quoted(role)} USING (true)"
            parts.append([why, *_policy(f"turnkeep_{kind}", with_rows, what)])
    if roles.tenants is not None:
        why = (
            "-- A tenant has the namespace of its name, whatever else it is a member of; "
            "the group has none."
        )
        # One comparison, which is made once for a statement: another would be made for each row.
        is_one = f"namespace = nullif(CURRENT_USER::text, {_text(roles.tenants)})"
        what = f"AS RESTRICTIVE TO {_quoted(roles.tenants)} USING ({is_one})"
        parts.append([why, *_policy("turnkeep_tenants", with_rows, what)])
        parts.append([_block(GUARD, with_rows, [roles.tenants])])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def row_security() -> list[ExecutableDDLElement]:
    """The statements that turn row security on for every table."""
    return [each for table in metadata.sorted_tables for each in _on(table, ON)]


def secure_rows(connection: Connection, *, on: bool | None) -> None:
    """Turn row security on or off where it isn't; None is on for all tables where it is on for one.

    Only tables that are there count, which may be fewer than this version has. Where it goes off,
    tenants lose their rights, for they would see all.
    """
    found = {row[0]: row[1:] for row in connection.execute(STATE, _place_of(connection))}
    if on is None:
        on = any(is_on and has_policy for is_on, has_policy, _ in found.values()) or None
    for table in metadata.sorted_tables:
        if on is None or table.name not in found:
            continue
        is_on, has_policy, tenants = found[table.name]
        pending: list[str] = []
        if tenants and not on:
            names = _names(*tenants).replace("%", "%%")
            pending += [each.format(tenants=names) for each in TENANTS_OFF]
        if (is_on, has_policy) != (on, on):
            pending += ON if on else OFF
        for statement in _on(table, pending):
            connection.execute(statement)


def check_whole(connection: Connection, namespace: str | None, *, deletes: bool) -> None:
    """Raise Unavailable where row security may hide from the role rows of *namespace*, None for
    all of them; or, where it *deletes*, keep them from it.
    """
    asked = {"namespace": namespace, "commands": ["r", "w", "d"] if deletes else ["r"]}
    if connection.execute(HIDDEN, _place_of(connection) | asked).scalar_one():
        what = "other namespaces have" if namespace is None else f"namespace {namespace!r} has"
        raise Unavailable(
            f"row security hides from this role what {what}: run this as the owner or the writer, "
            "or, as a tenant, for the namespace of its own name"
        )


def _place_of(connection: Connection) -> dict[str, Any]:
    """The parameters by which FROM_OURS finds the tables."""
    schema = (connection.get_execution_options().get("schema_translate_map") or {}).get(None)
    return {"names": list(metadata.tables), "schema": schema}


def _on(table: Table, statements: Iterable[str]) -> list[ExecutableDDLElement]:
    return [DDL(each).against(table) for each in statements]  # type: ignore[no-untyped-call]


def _block(code: str, tables: Sequence[str], roles: Sequence[str]) -> str:
    """*code* for these *tables*, which are quoted, and *roles*."""
    tag = "guard"
    while any(tag in name for name in (*roles, *tables)):
        tag += "_"
    return code.format(
        tag=tag,
        tables=", ".join(map(_text, tables)),
        roles=", ".join(_text(_quoted(role)) for role in roles),
    )


def _policy(name: str, tables: Sequence[str], what: str) -> list[str]:
    return [
        f"{verb} {name} ON {table}{rest};"
        for table in tables
        for verb, rest in (("DROP POLICY IF EXISTS", ""), ("CREATE POLICY", f" {what}"))
    ]


def _names(*roles: str | None) -> str:
    return ", ".join(_quoted(role) for role in roles if role is not None)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
