"""What ranks do in the tests of platforms.horovod, apart from pytest, which ranks need not import.

lab                    inputs that each rank knows of every rank, a NumPy oracle, the table of cases
forms                  the table: every form of every collective
reduce … mismatch      cases: functions that every rank calls, many in one launch
lost, stories          stories: processes that die, leave or come late
traffic                random plans of collectives
"""
