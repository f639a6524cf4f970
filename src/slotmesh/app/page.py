"""The page of ``slotmesh explore``: Gradio's components around the views."""

import inspect
from collections.abc import Callable
from dataclasses import replace
from html import escape
from typing import Any

import gradio as gr
from gradio.themes import Base, sizes

from slotmesh.app.explorer import MOST_SEED, Explorer
from slotmesh.app.links import VIEWS, ObjectsState, PropertiesState
from slotmesh.app.objects import MOST_SLOTS
from slotmesh.app.pictures import MOST_SCENE, WORLDS, ShownImage, load_upload
from slotmesh.app.playground import colours, tie_script, web_file
from slotmesh.readers.photos import ENDINGS

_FONTS = ["system-ui", "-apple-system", "Segoe UI", "DejaVu Sans", "sans-serif"]
_MONO = ["ui-monospace", "DejaVu Sans Mono", "monospace"]
_COLOURS = {
    "body_background_fill": "page",
    "body_text_color": "ink",
    "body_text_color_subdued": "soft",
    "block_background_fill": "panel",
    "block_border_color": "line",
    "block_label_text_color": "ink",
    "block_title_text_color": "ink",
    "border_color_primary": "line",
    "button_secondary_background_fill": "panel",
    "button_secondary_border_color": "line",
    "button_secondary_text_color": "ink",
    "checkbox_background_color_selected": "accent",
    "checkbox_border_color_selected": "accent",
    "checkbox_label_background_fill": "well",
    "checkbox_label_background_fill_selected": "well",
    "checkbox_label_text_color": "ink",
    "checkbox_label_text_color_selected": "ink",
    "color_accent": "accent",
    "input_background_fill": "well",
    "input_border_color": "line",
    "slider_color": "accent",
}
"""Colours of Gradio's own components, by those of the views."""
_WATCH = "const link = () => window.slotmeshLink?.(element); watch('value', link); link();"
# Only actions of the user count, and only the last of many events in a row.
_QUIET: dict[str, Any] = {
    "show_progress": "hidden",
    "trigger_mode": "always_last",
    "api_visibility": "private",
}


_Restore = tuple[Callable[[gr.Request], Any], list[Any]]
"""A function that restores a view from a link when the page is opened, and its outputs."""
_Searched = tuple[ObjectsState, Any]
"""The settings that slots depend on, and the upload, if any, of the last search for objects."""


def appearance() -> dict[str, Any]:
    """Arguments of ``launch`` for the look of the page, without loading from other hosts."""
    light, dark = colours()
    theme = Base(font=_FONTS, font_mono=_MONO, radius_size=sizes.radius_lg)
    # Most colours have a dark version; these switch by themselves.
    known = inspect.signature(theme.set).parameters
    pairs = ((name + end, value) for name, value in _COLOURS.items() for end in ("", "_dark"))
    theme.set(**{name: f"var(--slotmesh-{value})" for name, value in pairs if name in known})
    theme.set(button_border_width="1px")
    css = f":root {{ {light} }}\n.dark {{ {dark} }}\n{web_file('explore.css')}"
    return {
        "theme": theme,
        "css": css,
        "head": f"<script>{tie_script()}\n{web_file('explore.js')}</script>",
    }


def build_page(explorer: Explorer) -> gr.Blocks:
    """Three views in tabs: Tie, Objects and Properties."""
    with gr.Blocks(
        title="slotmesh explore", analytics_enabled=False, delete_cache=(600, 600)
    ) as page:
        gr.HTML(
            "<h1 style='font-size: 24px; margin: 4px 0'>slotmesh</h1>"
            "<p style='margin: 0; color: var(--slotmesh-soft)'>Slots that compete for inputs: as "
            "points, in images, and as names of objects.</p>"
        )
        with gr.Tabs(selected="tie") as tabs:
            with gr.Tab("Tie", id="tie") as tie:
                gr.HTML(
                    '<slotmesh-tie view="tie"></slotmesh-tie>',
                    elem_id="slotmesh-tie",
                    js_on_load="",
                )
            with gr.Tab("Objects", id="objects") as objects:
                restore_objects, of_objects = _objects(explorer, objects)
            with gr.Tab("Properties", id="properties") as properties:
                restore_properties, of_properties = _properties(explorer, properties)
        for tab, view in ((tie, "tie"), (objects, "objects"), (properties, "properties")):
            tab.select(None, js=f"() => slotmeshShow('{view}')", api_visibility="private")

        def choose(request: gr.Request) -> Any:
            view = request.query_params.get("view")
            # The user may have chosen a tab before this answer.
            return gr.Tabs(selected=view) if view in VIEWS[1:] else gr.skip()

        # In this order, as a tab draws its settings as soon as it is chosen.
        opened = page.load(restore_objects, outputs=of_objects, **_QUIET)
        opened = opened.then(restore_properties, outputs=of_properties, **_QUIET)
        opened = opened.then(choose, outputs=tabs, **_QUIET)
        opened.then(None, js="() => slotmeshReady()", api_visibility="private")
    return page


def _objects(explorer: Explorer, tab: gr.Tab) -> _Restore:
    """Fill the tab."""
    first = explorer.settle_objects(ObjectsState())
    upload, last = gr.State(None), gr.State(_searched(first))
    with gr.Row():
        with gr.Column(scale=1, min_width=270):
            world = gr.Dropdown(WORLDS, value=first.world, label="World", interactive=True)
            with gr.Row():
                scene = _whole_number("Scene", first.scene, MOST_SCENE)
                after = _next_button()
            button = _upload_button()
            message = gr.HTML("", visible=False)
            left = _models(explorer.discovery, first.left, "Left model")
            right = _models(explorer.discovery, first.right, "Right model")
            iteration = gr.Slider(
                1, max(2, explorer.n_iters(*explorer.discovery)), first.iteration, step=1,
                label="Attention of iteration",
            )  # fmt: skip
            slots = gr.Slider(1, MOST_SLOTS, first.slots, step=1, label="Slots")
            seed = _whole_number("Seed of the first slots", 0, MOST_SEED)
        with gr.Column(scale=4, min_width=320):
            with gr.Row():
                on_left = _switches("left", first.slots)
                on_right = _switches("right", first.slots)
            shown = gr.HTML("", elem_id="slotmesh-objects", js_on_load=_WATCH)
    settings = [world, scene, left, right, slots, seed, iteration]

    def state_of(
        values: tuple[Any, ...], on: tuple[list[int], list[int]] | None = None
    ) -> ObjectsState:
        names = ("world", "scene", "left", "right", "slots", "seed", "iteration")
        given = {k: v for k, v in zip(names, values, strict=True) if v is not None}
        state = ObjectsState(**given)
        if on is None:
            return state
        every = range(1, state.slots + 1)
        off = [tuple(slot for slot in every if slot not in chosen) for chosen in on]
        return ObjectsState(**given, off_left=off[0], off_right=off[1])

    def redraw(
        picture: ShownImage | None, chosen: list[int], others: list[int], *values: Any
    ) -> str:
        return _tried(lambda: explorer.objects(state_of(values, (chosen, others)), picture))

    def find(picture: ShownImage | None, before: _Searched, *values: Any) -> Any:
        state = explorer.settle_objects(state_of(values))
        now = _searched(state, picture)
        # A dropdown also fires if the focus only passes through it: slots that are off stay off.
        if now == before:
            return gr.skip()
        html = _tried(lambda: explorer.objects(state, picture))
        return html, _all_on(state.slots), _all_on(state.slots), now

    def leave_upload(chosen: str, before: _Searched) -> Any:
        return gr.skip() if chosen == before[0].world else _no_upload()

    found = [shown, on_left, on_right, last]
    searched = [upload, last, *settings]
    button.upload(_take, button, [upload, message], **_QUIET).success(
        find, searched, found, **_QUIET
    )
    after.click(_next, scene, [scene, upload, message], **_QUIET).then(
        find, searched, found, **_QUIET
    )
    for control, leave, given in ((world, leave_upload, [world, last]), (scene, _no_upload, [])):
        control.input(leave, given, [upload, message], **_QUIET).then(
            find, searched, found, **_QUIET
        )
    for control in (left, right, slots, seed):
        control.input(find, searched, found, **_QUIET)
    for control in (iteration, on_left, on_right):
        control.input(redraw, [upload, on_left, on_right, *settings], shown, **_QUIET)
    tab.select(redraw, [upload, on_left, on_right, *settings], shown, **_QUIET)

    def restore(request: gr.Request) -> Any:
        query = dict(request.query_params)
        if query.get("view") != ObjectsState.view:
            return gr.skip()
        state = explorer.settle_objects(ObjectsState.from_query(query))
        html = _tried(lambda: explorer.objects(state))
        switches = [_all_on(state.slots, off) for off in (state.off_left, state.off_right)]
        values = (state.world, state.scene, state.left or None, state.right or None)
        rest = (state.slots, state.seed, state.iteration, html, *switches, _searched(state))
        return *values, *rest

    return restore, [*settings, *found]


def _searched(state: ObjectsState, picture: ShownImage | None = None) -> _Searched:
    shown = replace(state, iteration=1, off_left=(), off_right=())
    return shown, None if picture is None else (picture.name, picture.key)


def _properties(explorer: Explorer, tab: gr.Tab) -> _Restore:
    """Fill the tab of the properties."""
    first = explorer.settle_properties(PropertiesState())
    upload = gr.State(None)
    with gr.Row():
        with gr.Column(scale=1, min_width=270):
            with gr.Row():
                scene = _whole_number("Scene", first.scene, MOST_SCENE)
                after = _next_button()
            button = _upload_button()
            message = gr.HTML("", visible=False)
            model = _models(explorer.predictors, first.model, "Model")
            confidence = gr.Slider(0.05, 0.95, 0.5, step=0.05, label="Least confidence")
        with gr.Column(scale=4, min_width=320):
            shown = gr.HTML("", elem_id="slotmesh-properties", js_on_load=_WATCH)
    settings = [scene, model, confidence]

    def draw(picture: ShownImage | None, *values: Any) -> str:
        names = ("scene", "model", "confidence")
        given = {k: v for k, v in zip(names, values, strict=True) if v is not None}
        return _tried(lambda: explorer.properties(PropertiesState(**given), picture))

    drawn = ([upload, *settings], shown)
    button.upload(_take, button, [upload, message], **_QUIET).success(draw, *drawn, **_QUIET)
    after.click(_next, scene, [scene, upload, message], **_QUIET).then(draw, *drawn, **_QUIET)
    scene.input(_no_upload, None, [upload, message], **_QUIET).then(draw, *drawn, **_QUIET)
    for control in (model, confidence):
        control.input(draw, *drawn, **_QUIET)
    tab.select(draw, *drawn, **_QUIET)

    def restore(request: gr.Request) -> Any:
        query = dict(request.query_params)
        if query.get("view") != PropertiesState.view:
            return gr.skip()
        state = explorer.settle_properties(PropertiesState.from_query(query))
        html = _tried(lambda: explorer.properties(state))
        return state.scene, state.model or None, state.confidence, html

    return restore, [*settings, shown]


def _whole_number(label: str, first: int, most: int) -> gr.Number:
    """A number from 0 to ``most``, which is corrected when the field loses focus.

    With Gradio's own bounds, every control fails while the number is out of range.
    """
    number = gr.Number(first, precision=0, label=label, min_width=90)
    # As Python rounds: halves to even.
    even = "const even = 2 * Math.round(value / 2)"
    whole = "Math.abs(value - even) <= 0.5 ? even : Math.round(value)"
    within = f"(value) => {{ {even}; return value && Math.min(Math.max({whole}, 0), {most}); }}"
    number.blur(None, number, number, js=within, **_QUIET)
    return number


def _next_button() -> gr.Button:
    return gr.Button("Next", min_width=70, size="md", elem_classes="slotmesh-next")


def _models(names: list[str], first: str, label: str) -> gr.Dropdown:
    return gr.Dropdown(model_choices(names), value=first or None, label=label, interactive=True)


def model_choices(names: list[str]) -> list[tuple[str, str]]:
    """Label and name of each model: the label is the end of the path, as the whole does not fit."""
    ends = [name.rpartition("/")[2] for name in names]
    return [
        (end if ends.count(end) == 1 else name, name) for name, end in zip(names, ends, strict=True)
    ]


def _upload_button() -> gr.UploadButton:
    return gr.UploadButton("Upload an image", file_types=list(ENDINGS), type="filepath", size="md")


def _switches(side: str, slots: int) -> gr.CheckboxGroup:
    every = list(range(1, slots + 1))
    return gr.CheckboxGroup(
        every,
        value=every,
        label=f"{side.title()}: slots that are on",
        min_width=280,
        elem_id=f"slotmesh-on-{side}",
    )


def _all_on(slots: int, off: tuple[int, ...] = ()) -> Any:
    every = list(range(1, slots + 1))
    return gr.CheckboxGroup(choices=every, value=[slot for slot in every if slot not in off])


def _take(path: str | None) -> tuple[ShownImage | None, Any]:
    """The uploaded image, or None and the reason."""
    if path is None:
        return _no_upload()
    try:
        return load_upload(path), gr.HTML("", visible=False)
    except (ValueError, OSError) as error:
        return None, gr.HTML(_alert(error), visible=True)


def _no_upload() -> tuple[None, Any]:
    return None, gr.HTML("", visible=False)


def _next(number: int | None) -> tuple[Any, ...]:
    return min(max(number or 0, 0) + 1, MOST_SCENE), *_no_upload()


def _tried(make: Callable[[], str]) -> str:
    """Return HTML, or an error that says what to do."""
    try:
        return make()
    except ValueError as error:
        return _alert(error)


def _alert(error: Exception) -> str:
    return f'<div class="slotmesh-error" role="alert">{escape(str(error))}</div>'
