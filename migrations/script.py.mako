<%
    below = down_revision or "an empty database"
    up = upgrades if "op." in (upgrades or "") else ""
    down = downgrades if "op." in (downgrades or "") else ""
%>\
"""${message.rstrip(".")}.

Revision: ${up_revision}, after ${below}
"""

% if "sa." in up + down:
import sqlalchemy as sa
% endif
% if up + down:
from alembic import op

% endif
% if imports:
${imports}

% endif
revision: str = "${up_revision}"
down_revision: str | None = ${f'"{down_revision}"' if down_revision else None}
branch_labels: str | None = ${repr(branch_labels)}
depends_on: str | None = ${repr(depends_on)}


def upgrade() -> None:
    """Go up from ${below}."""
% if up:
    ${up}
% endif


def downgrade() -> None:
    """Go down to ${below}."""
% if down:
    ${down}
% endif
