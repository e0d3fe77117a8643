"""The types of fields survive storage."""

from hypothesis import given
from hypothesis import strategies as st

from almanac.data.fields import DataType, Field, Kind, fields_from_json, fields_to_json

SCALARS = st.sampled_from(list(Kind)).map(DataType)
NAMES = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)


def containers(inner: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    members = st.lists(st.builds(Field, NAMES, inner), min_size=1, max_size=3).map(tuple)
    return st.one_of(
        st.builds(DataType, st.just(Kind.LIST), inner),
        st.builds(DataType, st.just(Kind.RECORD), st.none(), members),
    )


FIELDS = st.lists(
    st.builds(Field, NAMES, st.recursive(SCALARS, containers, max_leaves=4), st.none() | NAMES), max_size=4
)


@given(FIELDS)
def test_fields_are_the_same_after_storage_as_json(fields: list[Field]):
    assert fields_from_json(fields_to_json(fields)) == tuple(fields)


def test_a_plain_field_is_stored_as_name_and_type():
    assert fields_to_json([Field("Total Sent", DataType(Kind.INTEGER))]) == '[{"name":"Total Sent","type":"integer"}]'
