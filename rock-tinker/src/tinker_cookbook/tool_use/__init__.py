"""Tools for models: made of functions, run in episodes."""

from tinker_cookbook.renderers.messages import ToolSpec
from tinker_cookbook.tool_use.agent_tool_message_env import AgentToolMessageEnv, build_agent_tool_env
from tinker_cookbook.tool_use.tools import (
    FunctionTool,
    error_tool_result,
    handle_tool_call,
    simple_tool_result,
    tool,
)
from tinker_cookbook.tool_use.types import Tool, ToolInput, ToolResult

__all__ = [
    "AgentToolMessageEnv",
    "FunctionTool",
    "Tool",
    "ToolInput",
    "ToolResult",
    "ToolSpec",
    "build_agent_tool_env",
    "error_tool_result",
    "handle_tool_call",
    "simple_tool_result",
    "tool",
]
