"""Every operation of `Admin`, compared with Kafka's own tools: in `make soak`, on brokers 2.8, 3.9 and 4.1 to 4.4."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from protocol import Admin
from protocol.errors import UnsupportedVersion
from tests.protocol.admin import operations_on_clients, operations_on_logs
from tests.protocol.admin.kafkas_tools import Cluster, cluster_of
from tests.support.documents import ROOT
from tests.support.soak import SOAK

pytestmark = pytest.mark.soak

VERSIONS = ("2.8.2", "3.9.1", "4.1.1", "4.2.0", "4.3.1", "4.4.0")
# Operations that a broker lacks, with the API that is missing.
LACKS = {
    "2.8.2": {
        "list_config_resources": "ListConfigResources",
        "describe_metadata_quorum": "DescribeQuorum",
        "list_transactions": "ListTransactions",
        "describe_transactions": "DescribeTransactions",
        "abort_transaction": "DescribeTransactions",
    },
    "3.9.1": {"list_config_resources": "ListConfigResources"},
}
RELEASES = {"2.8.2": "Kafka 2.7 to 3.0", "3.9.1": "Kafka 3.9 to 4.0"}
OPERATIONS = {name for name in dir(Admin) if not name.startswith("_")} - {"close"}
CHECKS: dict[str, Callable[[Cluster], None]] = {
    name: check
    for module in (operations_on_logs, operations_on_clients)
    for name, check in vars(module).items()
    if name in {*OPERATIONS, "tokens"}
}
# One check is about all operations on tokens.
TOKENS = ("create_delegation_token", "renew_delegation_token", "expire_delegation_token", "describe_delegation_tokens")
NAMES = {name: TOKENS if name == "tokens" else (name,) for name in CHECKS}


@pytest.fixture(scope="module")
def on(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from cluster_of(request.param, tmp_path_factory.mktemp("every"))


def rows_of_docs() -> dict[str, list[str]]:
    """Return the row of each operation in the table of docs/admin.md, by its name."""
    text = (ROOT / "docs" / "admin.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {name: row for row in rows if len(row) == 6 for name in re.findall(r"`([a-z_]+)`", row[1])}


@pytest.mark.skipif(not SOAK, reason="runs a hundred Java tools")
@pytest.mark.parametrize("on", VERSIONS, indirect=True, scope="module")
@pytest.mark.kafka
@pytest.mark.parametrize("name", CHECKS)
def test_operation_agrees_with_kafkas_tool(on: Cluster, name: str) -> None:
    on.used.clear()
    api = LACKS.get(on.kafka.version, {}).get(name)
    if api is not None:
        with pytest.raises(UnsupportedVersion, match=api) as caught:
            CHECKS[name](on)
        assert f"the broker ({RELEASES[on.kafka.version]})" in str(caught.value)
        return
    CHECKS[name](on)
    for operation in NAMES[name]:
        scripts = set(re.findall(r"kafka-\S+\.sh", rows_of_docs()[operation][4]))
        # This tool begins with Kafka 3.0.
        assert scripts - on.used <= ({"kafka-transactions.sh"} if on.version < (3, 0) else set())


def test_docs_table_has_every_operation_of_admin() -> None:
    rows = rows_of_docs()
    assert rows.keys() == OPERATIONS == {name for names in NAMES.values() for name in names}
    assert all(re.search(r"kafka-\S+\.sh", row[4]) for row in rows.values())
    since = {name: row[5] for name, row in rows.items()}
    for check, names in NAMES.items():
        lacking = [version.rpartition(".")[0] for version in VERSIONS if check in LACKS.get(version, {})]
        for name in names:
            assert since[name] == ("all" if not lacking else f"not {', '.join(lacking)}"), name
