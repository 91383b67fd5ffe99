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

template <class Visitor>
void VisitKubernetes(Visitor& v, KubernetesSpec& pods) {
  v.Text("image", pods.image, TextKind::kPlain, false);
  v.Text("image_pull_policy", pods.image_pull_policy, TextKind::kPlain, false);
  v.Texts("image_pull_secrets", pods.image_pull_secrets);
  v.Text("context", pods.context, TextKind::kPlain, false);
  v.Text("namespace", pods.space, TextKind::kPlain, false);
  v.TextMap("resources", pods.resources);
  v.TextMap("node_selector", pods.node_selector);
  v.List("tolerations", pods.tolerations);
  v.List("volumes", pods.volumes);
  v.Text("mounts_secret", pods.mounts_secret, TextKind::kPlain, false);
  v.Bytes("shared_memory", pods.shared_memory, 0);
  v.Text("priority", pods.priority, TextKind::kPlain, false);
  v.Text("queue", pods.queue, TextKind::kPlain, false);
  v.Text("service_account", pods.service_account, TextKind::kPlain, false);
  v.Texts("env_from", pods.env_from);
  v.Integer("user", pods.user, 0, (std::int64_t{1} << 31) - 1);
  v.TextMap("labels", pods.labels);
  v.TextMap("annotations", pods.annotations);
}

/// Refuses keys that the launcher does not have.
template <class Visitor>
void RefuseKeys(Visitor& v, std::initializer_list<std::string_view> keys, std::string_view why) {
  for (std::string_view key : keys) v.Refused(key, Code::kInvalidArgument, why);
}

template <class Visitor>
void VisitRun(Visitor& v, RunSpec& run) {
  v.Word("launcher", run.launcher, {{"local", "slurm", "ssh", "kubernetes", "jobset", "mpijob", "sagemaker"}, {}});
  v.Integer("nodes", run.nodes, 1, 1 << 16);
  v.Integer("processes_per_node", run.processes_per_node, 1, 256);
  v.Text("machine", run.machine, TextKind::kPlain, false);
  v.Integer("max_restarts", run.max_restarts, 0, 1 << 20);
  v.TimeLimit("hang_timeout", run.hang_timeout, "auto");
  v.Command("command", run.command);
  v.TextMap("env", run.env);
  if (run.command.empty()) {
    RefuseKeys(v, {"mounts"}, "leave it out: it is for run.command; Millrace's own training reads URLs");
    RefuseKeys(v, {"directory", "source"}, "leave it out: it is for run.command");
  } else {
    v.Text("source", run.source, TextKind::kUrl, false);
    if (run.source.empty()) {
      v.Text("directory", run.directory, TextKind::kFolder, false);
    } else {
      RefuseKeys(v, {"directory"}, "leave it out: run.command runs in the folder of run.source");
    }
    v.TextMap("mounts", run.mounts);
  }
  v.AllOrWords("health_checks", run.health_checks, kHealthChecks);
  v.Flag("spot", run.spot);
  if (run.launcher == "sagemaker") {
    RefuseKeys(v, {"spares", "elastic"}, "leave it out: SageMaker gives a training job all its hosts, or ends it");
  } else if (run.in_pods()) {
    RefuseKeys(v, {"spares", "elastic"}, "leave it out: the cluster makes pods anew, and the job waits for them");
  } else {
    if (run.launcher == "local") {
      RefuseKeys(v, {"spares"}, "leave it out: the launcher local has one machine");
    } else {
      v.Integer("spares", run.spares, 0, 1 << 16);
    }
    if (!run.command.empty()) {
      RefuseKeys(v, {"elastic"}, "leave it out: the batch of run.command cannot be divided anew");
    }
    v.OptionalSection("elastic", run.elastic, [&](auto& e, ElasticSpec& elastic) {
      e.Integer("min", elastic.min, 1, 1 << 24);
      e.OptionalInteger("max", elastic.max, 1, 1 << 24);
    });
  }
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
  if (run.in_pods()) {
    VisitKubernetes(v, run.kubernetes);
  } else {
    RefuseKeys(v,
               {"image", "image_pull_policy", "image_pull_secrets", "context", "namespace", "resources",
                "node_selector", "tolerations", "volumes", "mounts_secret", "shared_memory", "priority", "queue",
                "service_account", "env_from", "user", "labels", "annotations"},
               "leave it out: it is for launcher: kubernetes, jobset or mpijob");
  }
}

}  // namespace millrace::jobs
