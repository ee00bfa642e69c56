"""The suite itself: it passes on a busy machine too."""

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings


def test_no_property_test_has_a_deadline_or_fails_because_the_machine_is_slow(request: pytest.FixtureRequest) -> None:
    assert settings.get_current_profile_name() == "any-machine"
    for item in request.session.items:
        function = getattr(item, "obj", None)
        if is_hypothesis_test(function):
            in_effect = function._hypothesis_internal_use_settings
            assert in_effect.deadline is None, item.nodeid
            assert HealthCheck.too_slow in in_effect.suppress_health_check, item.nodeid
