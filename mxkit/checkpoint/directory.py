def save_checkpoint(): pass
def load_checkpoint(): pass
