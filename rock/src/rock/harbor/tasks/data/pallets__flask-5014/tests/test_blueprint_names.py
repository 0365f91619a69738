"""Which names a blueprint may have."""

import flask
import pytest


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ValueError, match="(?i)name"):
        flask.Blueprint("", __name__)


def test_an_empty_name_given_by_keyword_is_refused() -> None:
    with pytest.raises(ValueError):
        flask.Blueprint(name="", import_name="shop", url_prefix="/shop")


@pytest.mark.parametrize("name", ["shop", "a", "0", "shop_floor", "shop-floor"])
def test_other_names_make_endpoints(name: str) -> None:
    blueprint = flask.Blueprint(name, __name__)
    blueprint.add_url_rule("/x", "page", lambda: "")
    app = flask.Flask("site")
    app.register_blueprint(blueprint)
    assert f"{name}.page" in app.view_functions


def test_a_dot_in_a_name_is_still_refused() -> None:
    with pytest.raises(ValueError):
        flask.Blueprint("shop.floor", __name__)
