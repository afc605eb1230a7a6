"""What `helpers.launch` is made of: one idea a file.

payload     the reader's function on its way to the ranks
client      the notebook's side of the fork server
interpreter the environment of another interpreter, in which ranks can run
forkserver  a process that imported torch once and forks fresh ranks from that clean state
hugepages   keeps what a fork has to copy small
rank        what one rank does from its first line to its last
supervisor  watches one run: streams output, finds the rank that failed first, stops the others
errors      what the reader gets to see when a run did not end well
"""
