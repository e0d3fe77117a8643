"""The hosts of URLs and the definition of public addresses, against `ipaddress` and a table."""

import os
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from almanac.net.errors import BadUrl, Blocked
from almanac.net.url import INSIDE, METADATA, NOT_PUBLIC, OTHER_PORTS, check_port, is_public, read_allowed, read_url

EXAMPLES = int(os.environ.get("ALMANAC_TEST_EXAMPLES", "500"))

fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="ALMANAC_TEST_EXAMPLES"
    not in os.environ,  # the same examples in each run, unless a longer run is requested
    database=None,
)

SAME = {
    "http://docs.example": "http://docs.example/",
    "HTTP://DOCS.Example:80/A": "http://docs.example/A",
    "https://docs.example:443/a#part": "https://docs.example/a",
    "https://docs.example:8443/a": "https://docs.example:8443/a",
    "http://docs.example:00080/": "http://docs.example/",
    "http://docs.example./": "http://docs.example/",
    "http://docs.example?q=1": "http://docs.example/?q=1",
    "http://docs.example/a/../b/./c": "http://docs.example/b/c",
    "http://docs.example/ä b": "http://docs.example/%C3%A4%20b",
    "http://docs.example/%41?q=%20": "http://docs.example/%41?q=%20",
    "http://bücher.example/": "http://xn--bcher-kva.example/",
    "http://bu\u0308cher.example/": "http://xn--bcher-kva.example/",
    "http://ｄｏｃｓ。example/": "http://docs.example/",
    "http://my_host/": "http://my_host/",
    "http://8.8.8.8/": "http://8.8.8.8/",
    "http://134744072/": "http://8.8.8.8/",
    "http://0x8.010.2056/": "http://8.8.8.8/",
    "http://[2606:4700::0:1111]/": "http://[2606:4700::1111]/",
    "http://[::ffff:8.8.8.8]/": "http://8.8.8.8/",
}


@pytest.mark.parametrize("written", SAME)
def test_one_place_has_one_form_however_it_is_written(written: str):
    assert read_url(written).url == SAME[written]


def test_a_place_shows_its_host_as_a_server_expects_it():
    assert read_url("https://docs.example/").authority == "docs.example"
    assert read_url("https://docs.example:80/").authority == "docs.example:80"
    assert read_url("http://[2606:4700::1111]:8080/").authority == "[2606:4700::1111]:8080"


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.0", "172.15.255.255", "172.32.0.0", "192.167.1.1", "198.17.1.1",
     "198.20.0.1", "223.255.255.255", "2606:4700::1111", "2a00:1450::1", "2001:4860:4860::8888"],
)  # fmt: skip
def test_the_neighbours_of_special_ranges_are_public(address: str):
    assert is_public(ip_address(address))


@fuzz
@given(
    st.ip_addresses(v=4)
    | st.ip_addresses(v=6)
    | st.sampled_from([n for n in NOT_PUBLIC if n.version == 4]).flatmap(lambda n: st.ip_addresses(network=n))
    | st.sampled_from([n for n in NOT_PUBLIC if n.version == 6]).flatmap(lambda n: st.ip_addresses(network=n))
)
def test_nothing_is_public_that_the_standard_library_calls_special(address: IPv4Address | IPv6Address):
    special = (address.is_private, address.is_loopback, address.is_link_local, address.is_multicast)
    special += (address.is_reserved, address.is_unspecified, not address.is_global)
    assert not (is_public(address) and any(special))


@pytest.mark.parametrize("inside", [str(each) for each in INSIDE])
def test_an_allowed_name_may_stand_for_an_address_inside(inside: str):
    address = ip_network(inside).broadcast_address
    assert not is_public(address)
    assert read_allowed(["wiki.internal"]).admits("wiki.internal", address)
    assert not read_allowed(["wiki.internal"]).admits("other.internal", address)
    assert not read_allowed([]).admits("wiki.internal", address)


@pytest.mark.parametrize(
    "address",
    ["169.254.169.254", "0.0.0.0", "168.63.129.16", "224.0.0.1", "255.255.255.255", "192.0.0.192", "fe80::1", "::",
     "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "ff02::1", *sorted(map(str, METADATA))],
)  # fmt: skip
def test_an_allowed_name_never_stands_for_what_hands_out_credentials_or_is_no_host(address: str):
    assert not read_allowed(["wiki.internal"]).admits("wiki.internal", ip_address(address))


def test_an_allowed_network_is_allowed_whatever_it_is_and_nothing_beside_it():
    allowed = read_allowed(["169.254.169.254", "10.1.0.0/16", "fe80::/64"])
    for address in ("169.254.169.254", "10.1.255.255", "fe80::1", "64:ff9b::10.1.2.3"):
        assert allowed.admits("any", ip_address(address)), address
    for address in ("169.254.169.253", "10.2.0.0", "fe80:0:0:1::1", "64:ff9b::10.2.0.0", "::10.1.0.1"):
        assert not allowed.admits("any", ip_address(address)), address


def test_an_allowed_name_is_compared_in_the_form_it_is_resolved_in():
    allowed = read_allowed(["WIKI.Internal.", "bücher.intern"])
    assert allowed.names == {"wiki.internal", "xn--bcher-kva.intern"}


@pytest.mark.parametrize(
    "entry", ["", "10.0.0.1/8", "10.0.0.0/33", "http://wiki", "wiki.internal:80", "*.internal", "a b"]
)
def test_an_entry_that_allows_nothing_sensible_is_named(entry: str):
    with pytest.raises(ValueError, match="not a network, an address or a host name"):
        read_allowed([entry])


@pytest.mark.parametrize("port", [80, 443, 1024, 3000, 5000, 8000, 8080, 8443, 9200, 65535])
def test_ports_of_the_web_are_open(port: int):
    check_port(read_url(f"http://docs.example:{port}/"))


@pytest.mark.parametrize(
    "port", [1, 21, 22, 25, 79, 81, 110, 445, 1023, *(p for some in OTHER_PORTS.values() for p in some)]
)
def test_ports_of_other_services_are_closed(port: int):
    with pytest.raises(Blocked):
        check_port(read_url(f"http://docs.example:{port}/"))


letters = st.sampled_from(
    [*"aA0x7f.:@/\\?#[]%-_ \t\n\0。．ß１ü\u202e\ud800℀", "http://", "https://", "127.0.0.1", "::1"]
)


@fuzz
@given(st.text(max_size=60) | st.lists(letters, max_size=20).map("".join) | st.text(max_size=40).map("http://".__add__)
       | st.lists(letters, max_size=12).map(lambda some: "http://" + "".join(some)))  # fmt: skip
def test_any_text_is_a_place_or_a_bad_url_and_a_place_reads_back_as_itself(text: str):
    try:
        place = read_url(text)
    except BadUrl:
        return
    assert place.scheme in ("http", "https")
    assert place.url.isascii()
    assert place.url.isprintable()
    assert " " not in place.url
    assert read_url(place.url) == place
