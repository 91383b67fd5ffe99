// The declarations of the keys of `run`.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>

#include "millrace/jobs/spec/run_spec.h"
#include "millrace/jobs/spec/spec_visitor.h"

namespace millrace::jobs {

template <class Visitor>
void VisitSlurm(Visitor& v, SlurmSpec& slurm) {
  v.Text(Key("partition", "Option of `sbatch` of this name."), slurm.partition, TextKind::kPlain, false);
  v.Text(Key("account", "Option of `sbatch` of this name."), slurm.account, TextKind::kPlain, false);
  v.Text(Key("qos", "Option of `sbatch` of this name."), slurm.qos, TextKind::kPlain, false);
  v.Text(Key("constraint", "Option of `sbatch` of this name."), slurm.constraint, TextKind::kPlain, false);
  v.TimeLimit(Key("time", "Limit, in whole minutes. The job saves before it and goes on later."), slurm.time, "none");
  v.Texts(Key("exclude", "Nodes that are not used.").Form("names"), slurm.exclude);
  v.Integer(Key("cpus_per_node", "Processors of each node; 0: whole nodes.").In("processors"), slurm.cpus_per_node, 0,
            1 << 16);
  v.Texts(Key("slurm_options", "Further options of `sbatch`."), slurm.options);
}

template <class Visitor>
void VisitSsh(Visitor& v, SshSpec& ssh) {
  v.Texts(Key("hosts", "The machines, as `ssh` takes them; the first has rank 0.")
              .Form("names")
              .Unset("those of `hostfile`"),
          ssh.hosts);
  v.Text(Key("hostfile", "A hostfile of an MPI program.").Form("file"), ssh.hostfile, TextKind::kPlain, false);
  v.Texts(Key("ssh_options", "Options of `ssh`, one word each."), ssh.options);
  v.Text(Key("millrace_path", "The `millrace` on the hosts; `millrace-train` is beside it.").Unset("as here"),
         ssh.millrace_path, TextKind::kFolder, false);
  v.TimeLimit(Key("connect_timeout", "How long a host may be away before the job fails."), ssh.connect_timeout, "none");
}

template <class Visitor>
void VisitKubernetes(Visitor& v, KubernetesSpec& pods) {
  v.Text(Key("image", "The containers' image, which is required. It has Millrace in `/usr/bin`."), pods.image,
         TextKind::kPlain, false);
  v.Text(Key("image_pull_policy", "When the image is pulled.")
             .Form("`Always`, `IfNotPresent`, `Never`")
             .Unset("as Kubernetes decides"),
         pods.image_pull_policy, TextKind::kPlain, false);
  v.Texts(Key("image_pull_secrets", "Secrets for the registry.").Form("names"), pods.image_pull_secrets);
  v.Text(Key("context", "Which cluster of the kubeconfig.").Unset("the current one"), pods.context, TextKind::kPlain,
         false);
  v.Text(Key("namespace", "Where the objects are.").Unset("the context's"), pods.space, TextKind::kPlain, false);
  v.TextMap(Key("resources", "What each pod requests, and its limits.").Form("map of amounts"), pods.resources);
  v.TextMap(Key("node_selector", "Labels that nodes must have."), pods.node_selector);
  v.List(Key("tolerations", "As Kubernetes writes them."), pods.tolerations);
  v.List(Key("volumes", "What is mounted where."), pods.volumes);
  v.Text(Key("mounts_secret", "A Secret with the keys for `run.mounts` and `checkpoint.url` of `run.command`."),
         pods.mounts_secret, TextKind::kPlain, false);
  v.Bytes(Key("shared_memory", "Size of `/dev/shm`; 0: as the container runtime decides."), pods.shared_memory, 0);
  v.Text(Key("priority", "A PriorityClass."), pods.priority, TextKind::kPlain, false);
  v.Text(Key("queue", "A LocalQueue of Kueue, which starts the job."), pods.queue, TextKind::kPlain, false);
  v.Text(Key("service_account", "Who the pods are."), pods.service_account, TextKind::kPlain, false);
  v.Texts(Key("env_from", "Secrets whose entries become variables of the environment.").Form("names"), pods.env_from);
  v.Integer(Key("user", "User and group of the containers, but not of an MPIJob's (root)."), pods.user, 0,
            (std::int64_t{1} << 31) - 1);
  v.TextMap(Key("labels", "Of all objects and pods."), pods.labels);
  v.TextMap(Key("annotations", "Of all objects and pods."), pods.annotations);
}

/// The condition that the launcher is one of some.
inline Condition WithLauncher(const RunSpec& run, std::initializer_list<std::string_view> words, std::string why) {
  return {std::ranges::find(words, run.launcher) != words.end(), "run.launcher", words, std::move(why)};
}

/// Visits the keys of a program of the user's own.
template <class Visitor>
void VisitProgram(Visitor& v, RunSpec& run) {
  v.Text(Key("source", "The program's code, which travels with the job. It runs there.").Form("folder or URL"),
         run.source, TextKind::kUrl, false);
  v.Only({run.source.empty(), "run.source", {kIsAbsent}, "leave it out: run.command runs in the folder of run.source"},
         [&](auto& o) {
           o.Text(Key("directory", "Where the program runs, on every machine.").Unset("where the job starts"),
                  run.directory, TextKind::kFolder, false);
         });
  v.TextMap(Key("mounts", "Where each bucket or prefix is mounted: `/path`, or `/path:ro` for reading only.")
                .Form("map of URLs"),
            run.mounts);
}

template <class Visitor>
void VisitNodes(Visitor& v, RunSpec& run) {
  const std::string_view why = run.launcher == "sagemaker"
                                   ? "leave it out: SageMaker gives a training job all its hosts, or ends it"
                               : run.in_pods() ? "leave it out: the cluster makes pods anew, and the job waits for them"
                                               : "leave it out: the launcher local has one machine";
  v.Only(WithLauncher(run, {"ssh", "slurm"}, std::string(why)), [&](auto& o) {
    o.Integer(Key("spares", "Nodes beyond `nodes` that take the place of lost ones.").In("nodes"), run.spares, 0,
              1 << 16);
  });
  v.Only(WithLauncher(run, {"local", "ssh", "slurm"}, std::string(why)), [&](auto& o) {
    o.Only({run.command.empty(),
            "run.command",
            {kIsAbsent},
            "leave it out: the batch of run.command cannot be divided anew"},
           [&](auto& p) {
             p.OptionalSection(Key("elastic", "Numbers of ranks to go on with.").Form("map of `min` and `max`"),
                               run.elastic, [&](auto& e, ElasticSpec& elastic) {
                                 e.Integer(Key("min", "The fewest.").In("ranks"), elastic.min, 1, 1 << 24);
                                 e.OptionalInteger(
                                     Key("max", "The most.").In("ranks").Unset("`nodes` × `processes_per_node`"),
                                     elastic.max, 1, 1 << 24);
                               });
           });
  });
}

template <class Visitor>
void VisitRun(Visitor& v, RunSpec& run) {
  v.Word(Key("launcher", "What starts the processes; `sagemaker`: in a container of SageMaker."), run.launcher,
         {{"local", "slurm", "ssh", "kubernetes", "jobset", "mpijob", "sagemaker"}, {}});
  v.Integer(Key("nodes", "Machines; 1 with `local`. With `ssh`: all hosts.").In("machines"), run.nodes, 1, 1 << 16);
  v.Integer(Key("processes_per_node", "Ranks on each machine.").In("ranks"), run.processes_per_node, 1, 256);
  v.Text(Key("machine", "What the planner knows of the machines.").Form("name or file").Unset("this machine"),
         run.machine, TextKind::kPlain, false);
  v.Integer(Key("max_restarts", "Restarts over the whole run.").In("restarts"), run.max_restarts, 0, 1 << 20);
  v.TimeLimit(Key("hang_timeout", "Silence that counts as a hang."), run.hang_timeout, "auto");
  v.Command(Key("command", "A program of yours that runs as each rank.").Form("list of words"), run.command);
  v.TextMap(Key("env", "Variables of every rank, such as `{NCCL_DEBUG: INFO}`. No secrets: a job file is not secret."),
            run.env);
  const bool has_program = !run.command.empty();
  v.Only({has_program, "run.command", {kIsGiven}, "leave it out: it is for run.command; Millrace reads URLs itself"},
         [&](auto& o) { VisitProgram(o, run); });
  v.AllOrWords(Key("health_checks", "What is checked of a machine before each attempt."), run.health_checks,
               kHealthChecks);
  v.Flag(Key("spot", "The machines are spot instances of EC2."), run.spot);
  VisitNodes(v, run);
  v.Only(WithLauncher(run, {"slurm"}, "leave it out: it is for launcher: slurm"),
         [&](auto& o) { VisitSlurm(o, run.slurm); });
  v.Only(WithLauncher(run, {"ssh"}, "leave it out: it is for launcher: ssh"), [&](auto& o) { VisitSsh(o, run.ssh); });
  v.Only(WithLauncher(run, {"kubernetes", "jobset", "mpijob"},
                      "leave it out: it is for launcher: kubernetes, jobset or mpijob"),
         [&](auto& o) { VisitKubernetes(o, run.kubernetes); });
}

}  // namespace millrace::jobs
