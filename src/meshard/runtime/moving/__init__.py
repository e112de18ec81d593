"""How arrays come to be laid out as asked: placed, made, resharded, donated."""
