from .measuring import profile as profile
