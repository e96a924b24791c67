"""The parser of sasl.jaas.config: Kafka's syntax, and errors that show no value."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aioproducer.config.jaas import JaasEntry, LoginModule, login_module, parse_jaas
from aioproducer.errors import ConfigurationError
from tests.config.test_definition import ask_java

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def refusal(text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        parse_jaas(text)
    assert caught.value.__cause__ is None
    assert str(caught.value).startswith("sasl.jaas.config: ")
    return str(caught.value)


def known(text: str) -> JaasEntry:
    entry = parse_jaas(text)
    login_module(entry.login_module)
    return entry


def parsed(text: str, parse: Callable[[str], JaasEntry]) -> JaasEntry | ConfigurationError:
    try:
        return parse(text)
    except ConfigurationError as error:
        return error


PARSED = [
    ("a.B required;", {}),
    (' a.B\trequired\n x="y" ;\n', {"x": "y"}),
    ("a.B REQUIRED x = y z='w';", {"x": "y", "z": "w"}),
    ("a.B requisite x=a1.b-c_$;", {"x": "a1.b-c_$"}),
    ("a.B sufficient x=_;", {"x": "_"}),
    ("a.B optional x=$a;", {"x": "$a"}),
    ("a.B required x=\u20ac\u00e4\U0001f600;", {"x": "\u20ac\u00e4\U0001f600"}),
    ("a.B required x='';", {"x": ""}),
    ("a.B 'required' \"x\"='1';", {"x": "1"}),
    ("a.B required x='a\"b' y=\"a'b\";", {"x": 'a"b', "y": "a'b"}),
    (r"""a.B required x='a\'b' y="\"\\";""", {"x": "a'b", "y": '"\\'}),
    (r"a.B required x='\n\t\101\q\0' y='\477\1234\8';", {"x": "\n\tAq\0", "y": "'7S48"}),
    ("a.B required x='a b;=/#';", {"x": "a b;=/#"}),
    ("// one\na.B /* two */ required /three\n x=y; // four", {"x": "y"}),
    ("a.B required x=y x=z;", {"x": "z"}),
    ("a.B required x=y; /* not closed", {"x": "y"}),
]
BOTH_REFUSE = [
    "",
    " \n",
    ";",
    "a.B",
    "a.B;",
    "a.B x=y;",
    "a.B needed x=y;",
    "'' required;",
    "a.B required",
    "a.B required x=y",
    "a.B required x;",
    "a.B required x=;",
    "a.B required =y;",
    "a.B required x==;",
    "a.B required x=1;",
    "a.B required x=-a;",
    "a.B required x=.a;",
    "a.B required x=a!b;",
    "a.B required x=a b;",
    "a.B required x=a'b';",
    "a.B required x=a/b;",
    "a.B required x=a@b;",
    "a.B required x=\x85;",
    'a.B required x="ab;',
    'a.B required x="a\nb";',
    "a.B required x='ab\\",
    "a.B required x=y; a.C required;",
    "a.B required; ;",
    "1.B required;",
]
ONLY_HERE_REFUSED = ['a.B required x="ab\n;', "a.B required 1=a;"]


@pytest.mark.parametrize(("text", "options"), PARSED)
def test_entries_are_parsed(text: str, options: dict[str, str]) -> None:
    assert parse_jaas(text) == ("a.B", options)


@pytest.mark.parametrize("text", [*BOTH_REFUSE, *ONLY_HERE_REFUSED])
def test_malformed_entries_are_rejected(text: str) -> None:
    """``refusal`` expects a ``ConfigurationError``."""
    refusal(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it has no login module"),
        ("=a", "it must begin with the class name of a login module"),
        ("a.B username='x';", "the word after the login module must be one of required, requisite"),
        ("a.B required username=x", "the semicolon at its end is missing"),
        ("a.B required password=ab/cd;", "'/' begins a comment: put a value that has one in quotes"),
        ("a.B required username=;", "the option username has no value"),
        ("a.B required password=7up;", "after the option password and '=', at character 23: put values in quotes"),
        ("a.B required password=p!w;", "after the value of the option password, at character 24: put values in quotes"),
        (
            "a.B required password=my pw;",
            "after the value of the option password, at character 26, a word has no value",
        ),
        ("a.B required password='pw;", "after the option password and '=', at character 23, a quote is not closed"),
        ("a.B required other='pw;", "after an option and '=', at character 20, a quote is not closed in its line"),
        ("a.B required x=y; a.C required;", "it must have exactly one login module"),
    ],
)
def test_errors_name_the_problem_and_its_position(text: str, says: str) -> None:
    assert says in refusal(text)


def quoted(value: str, quote: str) -> str:
    escaped = value.replace("\\", "\\\\").replace(quote, f"\\{quote}").replace("\n", "\\n").replace("\r", "\\r")
    return f"{quote}{escaped}{quote}"


NAMES = st.from_regex(r"[A-Za-z_$][A-Za-z0-9_$.\-]{0,8}", fullmatch=True)


@given(
    st.dictionaries(NAMES, st.text(max_size=20), max_size=4),
    st.sampled_from("'\""),
    st.sampled_from([" ", "\n", "\t ", " /* , */ ", " // ;\n"]),
)
def test_any_option_values_in_quotes_are_read_back(options: dict[str, str], quote: str, blank: str) -> None:
    pairs = [f"{name}{blank}={blank}{quoted(value, quote)}" for name, value in options.items()]
    entry = parse_jaas(blank.join([PLAIN, "required", *pairs]) + ";")
    assert entry.login_module == PLAIN
    assert entry.options == options


@given(NAMES)
def test_a_word_needs_no_quotes(value: str) -> None:
    assert parse_jaas(f"{PLAIN} required password={value};").options == {"password": value}


GARBAGE = st.text(alphabet="aZ9 =;'\"\\/*\n._-$!\x85\u00e4", max_size=40)


@given(GARBAGE)
@settings(max_examples=500)
@example("a required a=a")
def test_garbage_is_an_entry_or_a_configuration_error(text: str) -> None:
    found = parsed(text, parse_jaas)
    if isinstance(found, ConfigurationError):
        assert found.__cause__ is None
        assert found.__context__ is None
    else:
        assert all(isinstance(value, str) for value in found.options.values())


@given(
    st.text(alphabet="xyzXYZ789~^%", min_size=8, max_size=12),
    GARBAGE,
    GARBAGE,
    st.sampled_from(["", f"{PLAIN} required password=", f"{PLAIN} required username='u' password='", f"{PLAIN} "]),
)
@settings(max_examples=500)
def test_no_error_shows_the_text(secret: str, before: str, after: str, start: str) -> None:
    """Wherever the secret ends up: as a value, the name of an option, the control flag or the login module."""
    found = parsed(f"{start}{before}{secret}{after}", known)
    if isinstance(found, JaasEntry):
        assert secret not in repr(found)
    else:
        assert secret not in str(found)
        assert secret not in repr(found)


def test_an_entry_hides_its_options() -> None:
    entry = parse_jaas(f'{PLAIN} required username="anna" password="geheim";')
    assert repr(entry) == f"JaasEntry(login_module='{PLAIN}', options=[hidden])"
    assert isinstance(entry, JaasEntry)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        (PLAIN, LoginModule.PLAIN),
        ("org.apache.kafka.common.security.scram.ScramLoginModule", LoginModule.SCRAM),
        ("org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule", LoginModule.OAUTHBEARER),
        ("software.amazon.msk.auth.iam.IAMLoginModule", LoginModule.MSK_IAM),
        (f"kafkashaded.{PLAIN}", LoginModule.PLAIN),
        ("org.apache.kafka.shaded.common.security.scram.ScramLoginModule", LoginModule.SCRAM),
        ("shadeflink.software.amazon.msk.auth.iam.IAMLoginModule", LoginModule.MSK_IAM),
    ],
)
def test_login_modules_are_known_by_the_end_of_their_names(name: str, module: LoginModule) -> None:
    assert login_module(name) is module


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "com.sun.security.auth.module.Krb5LoginModule",
            r"Kerberos \(GSSAPI\) comes in a later release: use PLAIN, SCR",
        ),
        ("com.example.MyLoginModule", "the login module com.example.MyLoginModule has no equivalent: use one of Plain"),
        ("PlainLoginModule", "by its full class name"),
        ("evil.xcommon.security.plain.PlainLoginModule", "has no equivalent"),
    ],
)
def test_other_login_modules_are_rejected(name: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        login_module(name)


def test_a_value_that_is_no_module_name_is_not_shown() -> None:
    for text in ("hunter2", "eyJhbGciOiJub25lIn0.e30.", "pass word Module"):
        with pytest.raises(ConfigurationError, match="the login module has no equivalent") as caught:
            login_module(text)
        assert text not in str(caught.value)


def test_modules_know_their_options() -> None:
    assert LoginModule.PLAIN.knows("password")
    assert not LoginModule.PLAIN.knows("tokenauth")
    assert LoginModule.SCRAM.knows("tokenauth")
    assert LoginModule.OAUTHBEARER.knows("extension_traceId")
    assert LoginModule.OAUTHBEARER.knows("unsecuredLoginStringClaim_sub")
    assert LoginModule.OAUTHBEARER.knows("ssl.truststore.location")
    assert not LoginModule.MSK_IAM.knows("extension_traceId")


@pytest.mark.interop
def test_entries_are_read_as_by_kafka(kafka_jars: Path, tmp_path: Path) -> None:
    chance = random.Random(4)
    pieces = ["a", "Z9", " ", " ", "=", "=", ";", "'", '"', "\\", "/", "*", "\n", ".", "-", "_", "$", "!", "1", "x='y'"]
    texts = [text for text, _options in PARSED] + BOTH_REFUSE + ONLY_HERE_REFUSED
    for _ in range(400):
        middle = "".join(chance.choice(pieces) for _ in range(chance.randrange(12)))
        texts.append(f"a.B required x={middle};")
    files = []
    for number, text in enumerate(texts):
        files.append(tmp_path / f"{number}.jaas")
        files[-1].write_bytes(text.encode())
    answers = ask_java(kafka_jars, "jaas", *map(str, files))
    assert len(answers) == len(texts)
    accepted = 0
    for text, java in zip(texts, answers, strict=True):
        flat = java.get("options")
        theirs = None if flat is None else dict(zip(flat[::2], flat[1::2], strict=True))
        ours = parsed(text, parse_jaas)
        if isinstance(ours, JaasEntry):
            assert (java.get("module"), theirs) == ours, text
            accepted += 1
        else:
            # Java ends a quoted value at the end of its line, and takes a number for the name None.
            assert theirs is None or None in theirs or str(ours).endswith("a quote is not closed in its line"), text
    assert accepted > len(PARSED)
