"""`helpers.launch`: run a function on N ranks from a notebook cell, and see what they do.

launch       checks the arguments, waits for its turn, runs the ranks, returns their values
background   the same while the notebook is used for other things; `run_queue`: one run at a time
payload      the reader's function on its way to the ranks; `shared_message`: how values travel
pickling     how it and its classes get there, and `__main__` of a rank
surroundings what persistent ranks follow: arguments, folder, environment, edited modules
client       the notebook's side of the fork server
interpreter  the environment of another interpreter, in which ranks can run
forkserver   a process that imported torch once and forks fresh ranks from that clean state
rank         what one rank does from its first line to its last; `limit`: how much it may hold
output       what ranks print, also floods and progress bars; `rich_output`: figures; `logs`: the notebook's logging
protocol     what an engine does that starts ranks; `engine`: the default one; `engines`: all, by name
supervisor   watches one run: finds the rank that failed first, stops the others
context      what surrounds a launch in its thread: stop buttons, output, progress
shortage     shared memory, processes and ports that the system gives no more of
errors       what the reader sees when a run did not end well
progress     progress of runs; `display` and `panel`: how it is drawn
"""
