"""The broker without its sockets: the writer, what works beside it, who may do what, and what everybody may use."""
