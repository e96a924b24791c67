"""The login by tokens on virtual time: one fetch for all, refresh, failing and hanging providers, rejection, close."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import aioproducer
from aioproducer.errors import ConfigurationError, ProducerClosedError, TokenProviderError
from aioproducer.security.oauth.unsecured import UnsecuredTokens
from aioproducer.security.tokens import (
    LONGEST_REFRESH_DELAY_S,
    OAuthBearerToken,
    RefreshSettings,
    TokenAuthenticator,
    TokenLogin,
    checked_token,
    refresh_delay_s,
)
from tests.security.virtual import EPOCH, Scenario, run_virtually

LOGGER = logging.getLogger("aioproducer")


class Provider:
    """Returns numbered tokens, each after ``takes_s``; ``error`` is raised instead."""

    def __init__(self, scenario: Scenario, lifetime_s: float = 3600.0, takes_s: float = 0.01) -> None:
        self.scenario = scenario
        self.lifetime_s = lifetime_s
        self.takes_s = takes_s
        self.error: BaseException | None = None
        self.calls_at: list[float] = []
        self.running = 0
        self.most_running = 0

    async def __call__(self) -> tuple[str, float, str]:
        self.calls_at.append(self.scenario.elapsed())
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self.running -= 1
        if self.error is not None:
            raise self.error
        return f"token-{len(self.calls_at)}", self.scenario.true_time() + self.lifetime_s, "alice"


def login(scenario: Scenario, provider: Callable[[], object], **settings: Any) -> TokenLogin:
    return TokenLogin(
        provider, scenario.loop, Random(3), LOGGER, **{"wall_clock": scenario.wall_clock, "timeout_s": 5.0, **settings}
    )


def sent_by(authenticator: TokenAuthenticator) -> str:
    message = authenticator.step(None)
    assert message is not None
    return message.decode().split("Bearer ")[1].split("\x01")[0]


async def failure_of(awaitable: Awaitable[object]) -> str:
    with pytest.raises(TokenProviderError) as caught:
        await awaitable
    assert caught.value.retriable
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    return str(caught.value)


class TestSharing:
    def test_concurrent_callers_share_one_fetch_and_later_ones_its_token(self) -> None:
        async def scenario(world: Scenario) -> None:
            provider = Provider(world)
            tokens = login(world, provider)
            made = await asyncio.gather(*(tokens.authenticator() for _ in range(100)))
            made.append(await tokens.authenticator())
            assert {sent_by(authenticator) for authenticator in made} == {"token-1"}
            assert len(set(map(id, made))) == 101
            assert len(provider.calls_at) == 1
            await tokens.close()

        run_virtually(scenario)

    def test_a_cancelled_caller_cancels_no_other_ones_fetch(self) -> None:
        async def scenario(world: Scenario) -> None:
            provider = Provider(world, takes_s=1.0)
            tokens = login(world, provider)
            callers = [asyncio.ensure_future(tokens.authenticator()) for _ in range(3)]
            await asyncio.sleep(0.5)
            callers[0].cancel()
            await asyncio.wait(callers)
            assert callers[0].cancelled()
            assert [sent_by(caller.result()) for caller in callers[1:]] == ["token-1"] * 2
            assert len(provider.calls_at) == 1
            await tokens.close()

        run_virtually(scenario)

    def test_a_fetch_that_all_callers_left_still_counts(self) -> None:
        async def scenario(world: Scenario) -> None:
            provider = Provider(world, takes_s=1.0)
            tokens = login(world, provider)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await tokens.authenticator()
            await asyncio.sleep(1.0)
            assert sent_by(await tokens.authenticator()) == "token-1"
            await tokens.close()

        run_virtually(scenario)

    def test_a_failed_fetch_that_all_callers_left_is_reported_nowhere(self) -> None:
        async def scenario(world: Scenario) -> None:
            provider = Provider(world, takes_s=1.0)
            provider.error = OSError("down")
            tokens = login(world, provider)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await tokens.authenticator()
            await asyncio.sleep(1.0)
            await tokens.close()

        run_virtually(scenario)

    def test_each_caller_of_a_failed_fetch_raises_an_error_of_its_own(self) -> None:
        async def scenario(world: Scenario) -> None:
            provider = Provider(world)
            provider.error = OSError("down")
            tokens = login(world, provider)
            errors = await asyncio.gather(*(tokens.authenticator() for _ in range(3)), return_exceptions=True)
            assert len({id(error) for error in errors}) == 3
            assert {str(error) for error in errors} == {"The SASL token provider raised OSError: down"}
            await tokens.close()

        run_virtually(scenario)

    def test_extensions_of_configuration_and_token_are_sent(self) -> None:
        async def scenario(world: Scenario) -> None:
            def provider() -> tuple[object, ...]:
                return "abc", world.true_time() + 60, "alice", {"identityPoolId": "pool-7"}

            tokens = login(world, provider, extensions={"logicalCluster": "lkc-1", "identityPoolId": "pool-1"})
            message = (await tokens.authenticator()).step(None)
            assert message == b"n,,\x01auth=Bearer abc\x01logicalCluster=lkc-1\x01identityPoolId=pool-7\x01\x01"
            await tokens.close()

        run_virtually(scenario)

    def test_an_extension_that_cannot_be_sent_is_a_mistake_in_the_configuration(self) -> None:
        async def scenario(world: Scenario) -> None:
            with pytest.raises(ConfigurationError, match="extension must have a name of letters, other than 'auth'"):
                login(world, Provider(world), extensions={"auth": "hush"})

        run_virtually(scenario)


class TestRefresh:
    def test_a_token_is_refreshed_before_it_expires_without_a_caller(self) -> None:
        async def scenario(world: Scenario) -> None:
            provider = Provider(world, lifetime_s=3600.0)
            tokens = login(world, provider)
            await tokens.authenticator()
            await asyncio.sleep(20 * 3600)
            assert provider.most_running == 1
            pauses = [later - earlier for earlier, later in zip(provider.calls_at, provider.calls_at[1:], strict=False)]
            assert len(pauses) >= 20
            assert all(0.8 * 3600 <= pause <= 0.85 * 3600 + 1 for pause in pauses)
            assert len({round(pause, 3) for pause in pauses}) > 15, "the jitter must differ"
            await tokens.close()
            calls = len(provider.calls_at)
            await asyncio.sleep(86_400)
            assert len(provider.calls_at) == calls

        run_virtually(scenario)

    def test_callers_use_the_old_token_while_it_is_refreshed(self) -> None:
        async def scenario(world: Scenario) -> None:
            provider = Provider(world, lifetime_s=1000.0)
            tokens = login(world, provider)
            await tokens.authenticator()
            provider.takes_s = 4.0
            # The buffer of 300 s ends there.
            await asyncio.sleep(702.0)
            assert provider.running == 1
            assert sent_by(await tokens.authenticator()) == "token-1"
            await asyncio.sleep(4.0)
            assert sent_by(await tokens.authenticator()) == "token-2"
            await tokens.close()

        run_virtually(scenario)

    def test_a_failing_provider_is_called_again_while_the_old_token_is_valid(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def scenario(world: Scenario) -> None:
            provider = Provider(world, lifetime_s=1000.0)
            tokens = login(world, provider, retry_backoff_s=(0.1, 10.0))
            await tokens.authenticator()
            provider.error = OSError("503 of attempt 1")
            while len(provider.calls_at) < 12:
                assert sent_by(await tokens.authenticator()) == "token-1"
                await asyncio.sleep(1.0)
            pauses = [
                later - earlier for earlier, later in zip(provider.calls_at[1:], provider.calls_at[2:], strict=False)
            ]
            for number, pause in enumerate(pauses):
                assert 0.8 * min(0.1 * 2**number, 10.0) <= pause - 0.01 <= 1.2 * min(0.1 * 2**number, 10.0) + 0.01
            provider.error = OSError("503 of attempt 22")
            await asyncio.sleep(20)
            provider.error = OSError("no route")
            await asyncio.sleep(20)
            provider.error = None
            await asyncio.sleep(13)
            assert sent_by(await tokens.authenticator()) == f"token-{len(provider.calls_at)}"
            assert world.elapsed() < 1000, "the first token must still be valid"
            await tokens.close()

        with caplog.at_level(logging.INFO, logger="aioproducer"):
            run_virtually(scenario)
        warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == 2, "one for each distinct text"
        assert "503 of attempt 1" in warnings[0]
        assert "could not be refreshed; it is valid for another 300 s" in warnings[0]
        assert "no route" in warnings[1]
        assert "has been refreshed after" in caplog.records[-1].message

    def test_only_the_last_texts_of_failed_refreshes_are_remembered(self, caplog: pytest.LogCaptureFixture) -> None:
        async def scenario(world: Scenario) -> None:
            provider = Provider(world, lifetime_s=100_000.0)
            tokens = login(world, provider, retry_backoff_s=(1.0, 1.0))
            await tokens.authenticator()
            calls = 0

            async def fail() -> None:
                nonlocal calls
                calls += 1
                raise OSError(f"{chr(ord('a') + calls % 26) * 8} of attempt {calls}")

            tokens._provider = fail
            await asyncio.sleep(90_000.0)
            assert calls > 1000
            assert len(tokens._warned) == 20
            await tokens.close()

        with caplog.at_level(logging.CRITICAL, logger="aioproducer"):
            run_virtually(scenario)

    def test_without_a_valid_token_only_callers_call_the_provider(self) -> None:
        async def scenario(world: Scenario) -> None:
            provider = Provider(world, lifetime_s=1000.0)
            tokens = login(world, provider)
            await tokens.authenticator()
            provider.error = OSError("down")
            # The last retry may be due after the expiry.
            await asyncio.sleep(1020)
            calls = len(provider.calls_at)
            await asyncio.sleep(5000)
            assert len(provider.calls_at) == calls
            assert await failure_of(tokens.authenticator()) == "The SASL token provider raised OSError: down"
            provider.error = None
            assert sent_by(await tokens.authenticator()) == f"token-{calls + 2}"
            await tokens.close()

        run_virtually(scenario)

    def test_a_token_that_the_clock_has_overtaken_is_not_used(self) -> None:
        """While a machine is suspended, its loop clock stops, but its wall clock does not."""

        async def scenario(world: Scenario) -> None:
            provider = Provider(world)
            tokens = login(world, provider)
            await tokens.authenticator()
            world.skew_s = 7200.0
            provider.lifetime_s += 7200.0
            assert sent_by(await tokens.authenticator()) == "token-2"
            await tokens.close()

        run_virtually(scenario)

    @given(
        lifetime=st.floats(0.001, 1e9),
        share=st.floats(0, 1),
        factor=st.floats(0.5, 1.0),
        jitter=st.floats(0, 0.25),
        minimum=st.integers(0, 900),
        buffer=st.integers(0, 3600),
    )
    def test_the_delay_keeps_kafkas_bounds(
        self, lifetime: float, share: float, factor: float, jitter: float, minimum: int, buffer: int
    ) -> None:
        delay = refresh_delay_s(lifetime, RefreshSettings(factor, jitter, minimum, buffer), share)
        assert 0.1 <= delay <= max(lifetime, 0.1)
        assert delay <= LONGEST_REFRESH_DELAY_S
        if lifetime >= minimum + buffer and 0.1 < delay < LONGEST_REFRESH_DELAY_S:
            assert minimum <= delay <= lifetime - buffer + 1e-6 or delay == minimum
        if lifetime < minimum + buffer and delay > 0.1:
            assert delay >= min(lifetime * factor, LONGEST_REFRESH_DELAY_S)

    @pytest.mark.parametrize(
        ("lifetime", "delay"), [(3600, 2880), (1000, 700), (400, 100), (361, 61), (360, 60), (359, 287.2), (10, 8)]
    )
    def test_the_delay_is_kafkas(self, lifetime: float, delay: float) -> None:
        assert refresh_delay_s(lifetime, RefreshSettings(), 0.0) == pytest.approx(delay)


class TestFailures:
    def test_a_provider_that_hangs_fails_at_its_deadline(self) -> None:
        async def scenario(world: Scenario) -> None:
            async def provider() -> object:
                await asyncio.Event().wait()
                return None

            tokens = login(world, provider)
            text = await failure_of(tokens.authenticator())
            assert text.startswith("The SASL token provider returned nothing within 5 s (request_timeout_ms)")
            assert world.elapsed() == pytest.approx(5.0, abs=0.1)
            await tokens.close()

        run_virtually(scenario)

    def test_a_provider_that_ignores_its_cancellation_delays_neither_callers_nor_close_for_ever(self) -> None:
        async def scenario(world: Scenario) -> None:
            release = asyncio.Event()

            async def provider() -> object:
                while not release.is_set():
                    try:
                        await release.wait()
                    except asyncio.CancelledError:
                        continue
                return None

            tokens = login(world, provider)
            await failure_of(tokens.authenticator())
            await tokens.close()
            assert world.elapsed() < 7
            release.set()
            await asyncio.sleep(0.1)

        run_virtually(scenario)

    @pytest.mark.parametrize(
        ("error", "text"),
        [
            (OSError("no route to 10.0.0.1"), "raised OSError: no route to 10.0.0.1"),
            (KeyError("X"), "raised KeyError: 'X'"),
            (RuntimeError(), "raised RuntimeError"),
            (asyncio.CancelledError(), "raised RuntimeError: it was cancelled"),
            (TimeoutError("of its own"), "raised TimeoutError: of its own"),
            (ValueError("Authorization: Bearer abc.def.ghi"), "[hidden]"),
            (ValueError("body {'client_secret': 'tiger'}"), "raised ValueError: body {'client_secret': [hidden]}"),
        ],
    )
    def test_a_provider_that_raises_is_named_with_type_and_text(self, error: BaseException, text: str) -> None:
        async def scenario(world: Scenario) -> None:
            provider = Provider(world)
            provider.error = error
            tokens = login(world, provider)
            shown = await failure_of(tokens.authenticator())
            assert text in shown
            assert "abc" not in shown
            provider.error = None
            assert sent_by(await tokens.authenticator()) == "token-2"
            await tokens.close()

        run_virtually(scenario)

    def test_a_configuration_error_of_the_provider_is_raised_as_it_is(self) -> None:
        async def scenario(world: Scenario) -> None:
            provider = Provider(world)
            provider.error = ConfigurationError("the key is wrong")
            tokens = login(world, provider)
            with pytest.raises(ConfigurationError, match="the key is wrong"):
                await tokens.authenticator()
            await tokens.close()

        run_virtually(scenario)

    def test_an_expired_token_is_reported_with_the_clock(self) -> None:
        async def scenario(world: Scenario) -> None:
            provider = Provider(world)
            tokens = login(world, provider)
            world.skew_s = 3600.0 + 120.0
            text = await failure_of(tokens.authenticator())
            assert "expired at 2027-01-15 09:00:00 UTC, by this machine's clock" in text
            assert "clock skew" in text
            await tokens.close()

        run_virtually(scenario)

    def test_a_token_that_is_not_valid_yet_is_reported_with_the_clock(self) -> None:
        jwt = UnsecuredTokens(
            {"unsecuredLoginStringClaim_sub": "alice", "unsecuredLoginNumberClaim_nbf": str(EPOCH)}, lambda: EPOCH
        )().token
        assert checked_token((jwt, EPOCH + 60), EPOCH - 29).token == jwt
        signed = jwt + "c2ln"
        assert checked_token((signed, EPOCH + 60), EPOCH - 30).token == signed
        with pytest.raises(
            ValueError,
            match=r"becomes valid at 2027-01-15 08:00:00 UTC \(claim nbf\), which is in the future .*clock skew",
        ):
            checked_token((signed, EPOCH + 60), EPOCH - 31)


class TestForm:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (None, "returned a NoneType: it must return (token, expires_at)"),
            ("hush", "returned a str: it must return"),
            (("hush",), "returned a tuple of length 1"),
            (("hush", 1, "", {}, 5), "of length 5"),
            ((b"hush", EPOCH + 60), "a token of type bytes: it must be a str"),
            (("hush", "later"), "an expires_at of type str"),
            (("hush", True), "an expires_at of type bool"),
            (("hush", float("nan")), "an expires_at of type float"),
            (("hush", float("inf")), "divide milliseconds by 1000"),
            (("hush", 10**400), "divide milliseconds by 1000"),
            (("hush", EPOCH * 1000), "divide milliseconds by 1000"),
            (("hush", 3600), "add time.time() to a lifetime"),
            (("hush", -(10**400)), "add time.time() to a lifetime"),
            (("hush", EPOCH + 60, 7), "a principal of type int"),
            (("hush", EPOCH + 60, "", ["hush"]), "extensions that are no mapping of str to str"),
            (("hush", EPOCH + 60, "", {"a": 1}), "extensions that are no mapping of str to str"),
            (
                ("hush", EPOCH + 60, "", {"auth": "hush"}),
                "cannot be sent: a SASL extension must have a name of letters",
            ),
            (("hu sh", EPOCH + 60), "cannot be sent: the bearer token is empty or has characters that no token has"),
            (("", EPOCH + 60), "cannot be sent"),
        ],
    )
    def test_a_value_of_the_wrong_form_is_named_without_its_content(self, value: object, text: str) -> None:
        with pytest.raises(ValueError, match="returned") as caught:
            checked_token(value, EPOCH)
        assert text in str(caught.value)
        assert "hu" not in str(caught.value).replace("[hidden]", "")

    @pytest.mark.parametrize(
        "value",
        [
            ("abc", EPOCH + 60),
            ["abc", int(EPOCH) + 60],
            ("abc", EPOCH + 60, ""),
            ("abc", EPOCH + 60, "", {}),
            OAuthBearerToken("abc", EPOCH + 60),
        ],
    )
    def test_tuples_lists_and_tokens_are_accepted(self, value: object) -> None:
        assert checked_token(value, EPOCH) == OAuthBearerToken("abc", EPOCH + 60)

    @given(
        st.recursive(
            st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary()),
            lambda inner: st.one_of(
                st.lists(inner, max_size=5), st.tuples(inner, inner), st.dictionaries(st.text(), inner)
            ),
            max_leaves=8,
        )
    )
    def test_any_value_is_a_token_or_a_value_error(self, value: object) -> None:
        try:
            token = checked_token(value, EPOCH)
        except ValueError:
            return
        assert token.expires_at > EPOCH

    def test_the_text_of_a_token_hides_it_and_pickling_fails(self) -> None:
        token = aioproducer.OAuthBearerToken("hush", EPOCH, "alice", {"pool": "hush"})
        for text in (repr(token), str(token), f"{token}", f"{(token,)}"):
            assert "hush" not in text
            assert "alice" in text
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(token)


class TestRejection:
    def test_a_rejected_token_is_dropped_and_the_provider_called_again(self) -> None:
        async def scenario(world: Scenario) -> None:
            provider = Provider(world)
            tokens = login(world, provider)
            tokens.rejected(await tokens.authenticator())
            assert sent_by(await tokens.authenticator()) == "token-2"
            await tokens.close()

        run_virtually(scenario)

    def test_a_rejection_of_a_token_that_was_replaced_drops_nothing(self) -> None:
        async def scenario(world: Scenario) -> None:
            provider = Provider(world)
            tokens = login(world, provider)
            late = [await tokens.authenticator() for _ in range(5)]
            tokens.rejected(late.pop())
            await tokens.authenticator()
            for authenticator in late:
                tokens.rejected(authenticator)
            tokens.rejected(object())
            assert sent_by(await tokens.authenticator()) == "token-2"
            await tokens.close()

        run_virtually(scenario)

    @pytest.mark.parametrize(
        ("skew", "text"),
        [
            (0.0, "by this machine's clock it is valid until 2027-01-15 09:00:00 UTC. Check"),
            (7200.0, "by this machine's clock it expired at 2027-01-15 09:00:00 UTC. Check"),
        ],
    )
    def test_the_error_of_a_rejection_has_the_tokens_validity(self, skew: float, text: str) -> None:
        async def scenario(world: Scenario) -> None:
            provider = Provider(world)
            tokens = login(world, provider)
            authenticator = await tokens.authenticator()
            authenticator.step(None)
            authenticator.step(b'{"status":"invalid_token"}')
            world.skew_s = skew
            error = str(authenticator.rejection())
            assert text in error
            assert "token-1" not in error
            await tokens.close()

        run_virtually(scenario)

    def test_repeated_rejections_of_a_token_have_the_same_text(self) -> None:
        """So that a log that leaves out repeated texts leaves them out."""

        async def scenario(world: Scenario) -> None:
            tokens = login(world, Provider(world))
            authenticator = await tokens.authenticator()
            first = str(authenticator.rejection())
            await asyncio.sleep(100.0)
            assert str(authenticator.rejection()) == first
            await tokens.close()

        run_virtually(scenario)

    @pytest.mark.parametrize("skew_s", [4000.0, -4000.0])
    def test_repeated_errors_about_the_clock_have_the_same_text(self, skew_s: float) -> None:
        token = UnsecuredTokens(
            {"unsecuredLoginStringClaim_sub": "alice", "unsecuredLoginNumberClaim_nbf": str(EPOCH)}, lambda: EPOCH
        )()
        texts = set()
        for now in (EPOCH + skew_s, EPOCH + skew_s * 2):
            with pytest.raises(ValueError, match="clock skew") as caught:
                checked_token((token.token + "c2ln", token.expires_at), now)
            texts.add(str(caught.value))
        assert len(texts) == 1

    def test_the_refresh_of_a_rejected_token_is_cancelled(self) -> None:
        async def scenario(world: Scenario) -> None:
            provider = Provider(world)
            tokens = login(world, provider)
            tokens.rejected(await tokens.authenticator())
            await asyncio.sleep(86_400)
            assert len(provider.calls_at) == 1
            await tokens.close()

        run_virtually(scenario)


class TestClosing:
    @pytest.mark.parametrize("after_s", [0.0, 0.005, 800.0, 850.0, 852.0, 1200.0])
    def test_closing_at_any_time_ends_fetch_refresh_and_callers(self, after_s: float) -> None:
        async def scenario(world: Scenario) -> None:
            provider = Provider(world, lifetime_s=1000.0, takes_s=2.0)
            tokens = login(world, provider, refresh=RefreshSettings(0.8, 0.05, 0, 0))
            caller = asyncio.ensure_future(tokens.authenticator())
            await asyncio.sleep(after_s)
            await tokens.close()
            await tokens.close()
            calls = len(provider.calls_at)
            await asyncio.wait([caller])
            if after_s < 2.0:
                assert isinstance(caller.exception(), ProducerClosedError)
            with pytest.raises(ProducerClosedError):
                await tokens.authenticator()
            await asyncio.sleep(5000)
            assert len(provider.calls_at) == calls
            assert provider.running == 0

        run_virtually(scenario)

    @pytest.mark.parametrize("after_s", [0.0, 0.005, 800.0, 850.0, 852.0, 1200.0])
    def test_stopping_at_any_time_ends_fetch_refresh_and_callers(self, after_s: float) -> None:
        """A `close` that is cancelled before it begins does nothing."""

        async def scenario(world: Scenario) -> None:
            provider = Provider(world, lifetime_s=1000.0, takes_s=2.0)
            tokens = login(world, provider, refresh=RefreshSettings(0.8, 0.05, 0, 0))
            caller = asyncio.ensure_future(tokens.authenticator())
            await asyncio.sleep(after_s)
            closing = asyncio.ensure_future(tokens.close())
            tokens.stop()
            tokens.stop()
            closing.cancel()
            calls = len(provider.calls_at)
            await asyncio.wait([caller, closing])
            if after_s < 2.0:
                assert isinstance(caller.exception(), ProducerClosedError)
            with pytest.raises(ProducerClosedError):
                await tokens.authenticator()
            await asyncio.sleep(5000)
            assert len(provider.calls_at) == calls
            assert provider.running == 0
            await tokens.close()

        run_virtually(scenario)

    def test_a_close_that_is_cancelled_has_stopped_everything(self) -> None:
        async def scenario(world: Scenario) -> None:
            provider = Provider(world, takes_s=2.0)
            tokens = login(world, provider)
            caller = asyncio.ensure_future(tokens.authenticator())
            await asyncio.sleep(0.1)
            closing = asyncio.ensure_future(tokens.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([caller, closing])
            assert provider.running == 0
            assert isinstance(caller.exception(), ProducerClosedError)

        run_virtually(scenario)

    def test_a_fetch_that_the_program_cancels_fails_its_callers_and_the_next_call_fetches_again(self) -> None:
        """As code that cancels all tasks of the loop does; the error once said that the client was closed."""

        async def scenario(world: Scenario) -> None:
            provider = Provider(world, takes_s=1.0)
            tokens = login(world, provider)
            callers = [asyncio.ensure_future(tokens.authenticator()) for _ in range(2)]
            await asyncio.sleep(0.1)
            fetch = tokens._fetch
            assert fetch is not None
            fetch.cancel()
            while not fetch.cancelled():  # noqa: ASYNC110 - in the same turn of the loop
                await asyncio.sleep(0)
            assert tokens._fetch is fetch, "its callbacks must not have run yet"
            assert sent_by(await tokens.authenticator()) == "token-2"
            for caller in callers:
                text = await failure_of(caller)
                assert text.startswith("The program has cancelled the call of the SASL token provider; the next")
            await tokens.close()

        run_virtually(scenario)

    def test_a_refresh_that_the_program_cancels_is_repeated(self) -> None:
        async def scenario(world: Scenario) -> None:
            provider = Provider(world, lifetime_s=1000.0, takes_s=1.0)
            tokens = login(world, provider)
            await tokens.authenticator()
            await asyncio.sleep(700.5)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(10.0)
            assert len(provider.calls_at) == 3
            assert sent_by(await tokens.authenticator()) == "token-3"
            await tokens.close()

        run_virtually(scenario)

    def test_closing_lets_an_async_provider_clean_up(self) -> None:
        async def scenario(world: Scenario) -> None:
            cleaned = False

            async def provider() -> None:
                nonlocal cleaned
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(0.1)
                    cleaned = True

            tokens = login(world, provider)
            caller = asyncio.ensure_future(tokens.authenticator())
            await asyncio.sleep(0.1)
            await tokens.close()
            assert cleaned
            assert isinstance((await asyncio.gather(caller, return_exceptions=True))[0], ProducerClosedError)

        run_virtually(scenario)

    @settings(max_examples=25)
    @given(seed=st.integers(0, 10_000))
    def test_any_order_of_calls_leaves_nothing_behind(self, seed: int) -> None:
        """Callers, cancellations, rejections, outages and a close at random times."""

        async def scenario(world: Scenario) -> None:
            random = Random(seed)
            provider = Provider(
                world, lifetime_s=random.choice([1.0, 10.0, 1000.0]), takes_s=random.choice([0.0, 1.0, 7.0])
            )
            tokens = login(world, provider)
            callers: list[asyncio.Task[TokenAuthenticator]] = []
            for _ in range(random.randrange(30)):
                match random.randrange(5):
                    case 0:
                        await asyncio.sleep(random.choice([0.0, 0.1, 5.0, 900.0]))
                    case 1:
                        provider.error = random.choice([None, OSError("down"), asyncio.CancelledError()])
                    case 2 if callers:
                        random.choice(callers).cancel()
                    case 3 if callers and callers[0].done() and not callers[0].cancelled():
                        if callers[0].exception() is None:
                            tokens.rejected(callers[0].result())
                    case _:
                        callers.append(asyncio.ensure_future(tokens.authenticator()))
                assert provider.most_running <= 1
            await tokens.close()
            for result in await asyncio.gather(*callers, return_exceptions=True):
                assert isinstance(
                    result, TokenAuthenticator | TokenProviderError | ProducerClosedError | asyncio.CancelledError
                )

        run_virtually(scenario)
