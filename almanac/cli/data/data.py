"""`almanac data`: datasets. One list of all its commands."""

from collections.abc import Callable, Mapping
from typing import Any

from almanac.cli.data import dataset_access, dataset_export, dataset_list, dataset_rows
from almanac.cli.support.options import command_group

COMMANDS: Mapping[str, Callable[..., Any]] = {
    "list": dataset_list.list_datasets,
    "show": dataset_list.show_dataset,
    "push": dataset_rows.push_rows,
    "query": dataset_rows.query_rows,
    "verify": dataset_rows.verify_result,
    "export": dataset_export.export_rows,
    "versions": dataset_list.list_versions,
    "describe": dataset_list.describe_dataset,
    "remove": dataset_list.remove_dataset,
    "restore": dataset_list.restore_dataset,
    "trash": dataset_list.list_trash,
    "share": dataset_access.share_dataset,
    "shares": dataset_access.list_shares,
    "rule": dataset_access.set_rule,
    "rules": dataset_access.list_rules,
}

data_app = command_group("Datasets: tables of rows, with versions, row rules and queries.")
for _name, _command in COMMANDS.items():
    data_app.command(_name)(_command)
