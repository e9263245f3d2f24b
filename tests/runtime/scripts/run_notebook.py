import os
import sys

import nbclient
import nbformat

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), sys.argv[1])
notebook = nbformat.read(path, as_version=4)
nbclient.NotebookClient(notebook, timeout=120, kernel_name='python3').execute()
for cell in notebook.cells:
    for output in cell.get('outputs', []):
        assert output.get('name') != 'stderr', output
        print(output.get('text', ''), end='')
