"""Style of all interactive figures: titles, margins, legend, hover."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

LEGEND_LINE = 9  # pixels of height for each name under a figure: two of them share a line


def labelled(figure: Figure, title: str, x_title: str, y_title: str) -> Figure:
    """The figure, with its titles and the look that all figures share.

    The legend stands under the figure, away from the tools at its top, and makes it higher.
    """
    names = sum(1 for trace in figure.data if trace.name and trace.showlegend is not False)
    height = figure.layout.height or 400
    figure.update_layout(
        title={"text": title, "font": {"size": 15}, "yref": "container", "y": 0.97},
        xaxis_title=x_title,
        yaxis_title=y_title,
        template="plotly_white",
        height=height + LEGEND_LINE * max(0, names - 4),
        margin={"l": 60, "r": 20, "t": 60 if title else 34, "b": 50},
        legend={
            "orientation": "h",
            "yref": "container",
            "yanchor": "bottom",
            "y": 0.0,
            "x": 0.0,
            "itemclick": "toggle",
        },
        # See-through, for the page's own background to be seen, dark or light.
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": "#8a8f98", "activecolor": "#2f7fd0"},
        hoverlabel={"namelength": -1},
    )
    figure.update_xaxes(automargin=True)
    figure.update_yaxes(automargin=True)
    return figure
