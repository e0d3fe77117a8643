"""Names are recognised as people write them."""

import pytest

from almanac.data.c9ql import parse, print_query
from almanac.data.fields import DATE, DECIMAL, INTEGER, TEXT, Field

FIELDS = [
    Field("Message Type", TEXT),
    Field("sent", INTEGER),
    Field("date", DATE),
    Field("Order", TEXT),
    Field("Order By Date", TEXT),
    Field("Cost (USD)", DECIMAL),
    Field("Cost", DECIMAL),
    Field("売上", INTEGER),
    Field("sum(sent)", INTEGER),
    Field("2024 Sales", INTEGER),
    Field("Case Number", TEXT),
    Field("Id", TEXT),
    Field("ID", TEXT),
]

READINGS = {
    "sent, MESSAGE  type": "select `sent`, `Message Type`",
    "select * where Message Type = Transactional and sent > 200000": (
        "select * where `Message Type` = 'Transactional' and `sent` > 200000"
    ),
    "select max(sent) as Total Sent, Message Type group by Message Type": (
        "select max(`sent`) as `Total Sent`, `Message Type` group by `Message Type`"
    ),
    "select sum(sent)": "select `sum(sent)`",
    "select sum( sent ) total": "select sum(`sent`) as `total`",
    "select Order order by Order desc": "select `Order` order by `Order` desc",
    "select Order By Date, Order order by Order By Date": ("select `Order By Date`, `Order` order by `Order By Date`"),
    "select Cost (USD)*2, Cost*2": "select `Cost (USD)` * 2, `Cost` * 2",
    "select 2024 Sales, 2024": "select `2024 Sales`, 2024",
    "select Case Number, case when sent > 1 then Very High else low end as Level": (
        "select `Case Number`, case when `sent` > 1 then 'Very High' else 'low' end as `Level`"
    ),
    "select 売上 where 売上>1": "select `売上` where `売上` > 1",
    "select Id, ID, iD": "select `Id`, `ID`, `Id`",
    "select *, ~date where order like New York order by sent, order desc limit 3": (
        "select *, ~`date` where `Order` like 'New York' order by `sent`, `Order` desc limit 3"
    ),
    "distinct order": "select distinct `Order`",
    "select distinct(order)": "select distinct(`Order`)",
    "select count(distinct order), count(*)": "select distinct(`Order`), count(*)",
    "select distinct (sent + 1) as x": "select distinct `sent` + 1 as `x`",
    "where sent in (1, 2) or order not in (North-East, 'a,b')": (
        "select * where `sent` in (1, 2) or `Order` not in ('North-East', 'a,b')"
    ),
    "select date-24*60*60*1000 as yesterday": "select `date` - 24 * 60 * 60 * 1000 as `yesterday`",
    "where date >= 2024-01-31": "select * where `date` >= '2024-01-31'",
    "select date_format(week(date),ddMMMyyyy)": "select date_format(week(`date`), 'ddMMMyyyy')",
    'select "order", "none" as x': 'select "order", "none" as `x`',
    "select tma(sent, date, 5d, Order)": "select tma(`sent`, `date`, '5d', `Order`)",
    "select sent as Open Rate %, sent as `a,b`": "select `sent` as `Open Rate %`, `sent` as `a,b`",
    "select order as x group by order; select x where x = order": (
        "select `Order` as `x` group by `Order`; select `x` where `x` = 'order'"
    ),
    "; select sent ;; limit 1 ;": "select `sent`; select * limit 1",
    'where date > {$c9_today-1d:YYYYMMdd} and order in $c9_o${list|"|,}$(A,B)$[Label]$': (
        'select * where `date` > {$c9_today-1d:YYYYMMdd} and `Order` in ($c9_o${list|"|,}$(A,B)$[Label]$)'
    ),
}


@pytest.mark.parametrize("text", READINGS)
def test_a_query_is_read_as_people_mean_it(text: str):
    assert print_query(parse(text, FIELDS)) == READINGS[text]


def test_names_after_a_transpose_are_the_words_up_to_the_next_symbol():
    text = "select transpose(Order, sent); select West Coast, East + 1 where West Coast > East and Kind = Big One"
    assert print_query(parse(text, FIELDS)) == (
        "select transpose(`Order`, `sent`); select `West Coast`, `East` + 1 "
        'where `West Coast` > "East" and `Kind` = "Big One"'
    )
