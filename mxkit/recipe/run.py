def run_recipe(): pass
