// The list of the keys of `run`.
#pragma once

#include <initializer_list>
#include <string_view>

#include "millrace/jobs/spec/run_spec.h"
#include "millrace/jobs/spec/spec_visitor.h"

namespace millrace::jobs {

template <class Visitor>
void VisitSlurm(Visitor& v, SlurmSpec& slurm) {
  v.Text("partition", slurm.partition, TextKind::kPlain, false);
  v.Text("account", slurm.account, TextKind::kPlain, false);
  v.Text("qos", slurm.qos, TextKind::kPlain, false);
  v.Text("constraint", slurm.constraint, TextKind::kPlain, false);
  v.TimeLimit("time", slurm.time, "none");
  v.Texts("exclude", slurm.exclude);
  v.Integer("cpus_per_node", slurm.cpus_per_node, 0, 1 << 16);
  v.Texts("slurm_options", slurm.options);
}

template <class Visitor>
void VisitSsh(Visitor& v, SshSpec& ssh) {
  v.Texts("hosts", ssh.hosts);
  v.Text("hostfile", ssh.hostfile, TextKind::kPlain, false);
  v.Texts("ssh_options", ssh.options);
  v.Text("millrace_path", ssh.millrace_path, TextKind::kFolder, false);
  v.TimeLimit("connect_timeout", ssh.connect_timeout, "none");
}

/// Refuses keys that the launcher does not have.
template <class Visitor>
void RefuseKeys(Visitor& v, std::initializer_list<std::string_view> keys, std::string_view why) {
  for (std::string_view key : keys) v.Refused(key, Code::kInvalidArgument, why);
}

template <class Visitor>
void VisitRun(Visitor& v, RunSpec& run) {
  v.Word("launcher", run.launcher, {{"local", "slurm", "ssh"}, {"kubernetes"}});
  v.Integer("nodes", run.nodes, 1, 1 << 16);
  v.Integer("processes_per_node", run.processes_per_node, 1, 256);
  v.Text("machine", run.machine, TextKind::kPlain, false);
  v.Integer("max_restarts", run.max_restarts, 0, 1 << 20);
  v.TimeLimit("hang_timeout", run.hang_timeout, "auto");
  if (run.launcher == "slurm") {
    VisitSlurm(v, run.slurm);
  } else {
    RefuseKeys(v, {"partition", "account", "qos", "constraint", "time", "exclude", "cpus_per_node", "slurm_options"},
               "leave it out: it is for launcher: slurm");
  }
  if (run.launcher == "ssh") {
    VisitSsh(v, run.ssh);
  } else {
    RefuseKeys(v, {"hosts", "hostfile", "ssh_options", "millrace_path", "connect_timeout"},
               "leave it out: it is for launcher: ssh");
  }
}

}  // namespace millrace::jobs
