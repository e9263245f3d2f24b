"""Names of attributes and variables that PyTorch does not use itself."""

import keyword
from typing import Set

# Attributes of nn.Module and its containers, and names that the generated file uses
_TEXT = (
    "F OrderedDict Path T_destination Tensor add_module append apply bfloat16 buffers call_super_init "
    "children compile cpu cuda double dump_patches eval extend extra_repr float forward get_buffer "
    "get_extra_state get_parameter get_submodule half insert ipu load load_file load_state_dict modules "
    "mtia named_buffers named_children named_modules named_parameters nn parameters pop "
    "register_backward_hook register_buffer register_forward_hook register_forward_pre_hook "
    "register_full_backward_hook register_full_backward_pre_hook register_load_state_dict_post_hook "
    "register_load_state_dict_pre_hook register_module register_parameter register_state_dict_post_hook "
    "register_state_dict_pre_hook requires_grad_ self set_extra_state set_submodule share_memory "
    "state_dict to to_empty torch train training type xpu zero_grad "
)
_TAKEN = frozenset(_TEXT.split())


def identifier(name: str, taken: Set[str]) -> str:
    """A valid name of an attribute that nn.Module does not have.

    >>> identifier("type", set()), identifier("0", set()), identifier("conv-1", {"conv_1"})
    ('type_', 'layer0', 'conv_1_')
    """
    name = "".join(letter if letter.isalnum() or letter == "_" else "_" for letter in name)
    name = f"layer{name}" if not name or name[0].isdigit() else name
    while name in taken or name in _TAKEN or keyword.iskeyword(name):
        name += "_"
    return name
