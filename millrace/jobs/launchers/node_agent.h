// The agent on each machine of a job that has several. It starts the machine's ranks and reports them to the
// supervisor.
#pragma once

#include <stop_token>

namespace millrace::jobs {

/// Carries out the orders that come on descriptor `in` and writes events to `out`, a JSON object a line each. Both are
/// pipes or sockets to a RemoteLauncher, through srun or ssh. Returns when `in` ends; then no rank runs any more.
/// Blocks.
///
/// Orders:
///   {"health": {"checks": […], "folder": "", "store": "https://…", "ca_bundle": "",
///               "spot": ""}}
///                      asks for the state of this machine (HealthOptions). From then on, what gets better or worse
///                      while ranks run is reported every 30 s, and a notice of EC2 at once
///   {"port": true}     asks for a free port of this machine
///   {"start": {"attempt": 1, "first_rank": 4, "ranks": 2, "world_size": 8, "master_address": "10.0.0.1",
///              "master_port": 29500, "rank_secret": "…", "threads": 0, "lease_s": 30,
///              "program": "/usr/bin/millrace-train", "job": "…", "env": {…}}}
///                      starts ranks 4 and 5. With "first_local_rank" and "local_world_size", other agents start
///                      further ranks on this machine. `job` is the text of the job file. An empty `program` is
///                      millrace-train beside this program. With "foreign" (ForeignProgram as JSON), runs that instead
///                      of `program`. If no order comes for a given `lease_s` (RunningTime), the agent kills
///                      the ranks and returns: others may be started in their place.
///   {}                 the answer to a sign of life
///   {"signal": 15}     for every rank that runs; SIGTERM only once
///   {"leave": true}    SIGTERM for every rank that runs; RunNodeAgent returns when they have ended
/// Events:
///   {"port": 29500}
///   {"started": [4711, 4712]}                the processes
///   {"refused": "…"}                                    the order was not carried out; no rank was started
///   {"beat": {"rank": 4, "beats": 3, "step": 2}}        without a step, if none is done
///   {"line": {"rank": 4, "error": false, "text": "…"}}  that the rank wrote; bytes that are no UTF-8 are replaced
///   {"exit": {"rank": 4, "code": 0, "signal": 9}}
///   {"health": [{"check": "disk", "level": "ok", "what": "…", "advice": "", "limit": "…"}, …]}
///   {}                                       every 2 s: this machine is alive
/// Returns 0, or 1 if `out` is closed or the lease is over. Ranks are killed then, too.
/// When `stop` fires, the agent leaves as it does after that order, within a second.
int RunNodeAgent(int in, int out, std::stop_token stop = {});

}  // namespace millrace::jobs
