// millrace doctor: checks whether Millrace can work here, and prints what to do if not.
#include "apps/common/output.h"
#include "apps/millrace/doctor/doctor.h"

namespace millrace::cli {
namespace {

/// The first rank fails for all: the job's supervisor ends the others when a rank fails.
int ReportNodes(const Context& context, const ComparedNodes& nodes) {
  bool failed = false;
  for (const auto& [node, findings] : nodes.findings) {
    if (!node.empty() && !context.globals.json) Print("{}\n", node);
    for (const Finding& finding : findings) PrintFinding(context, finding, node);
    failed = failed || jobs::FirstFailure(findings) != nullptr;
  }
  return failed && (nodes.rank == 0 || nodes.findings.front().first.empty()) ? kExitFailed : kExitOk;
}

int Run(const Context& context, const RequiredFeatures& needs) {
  bool failed = false;
  auto report = [&](const Finding& finding) {
    PrintFinding(context, finding);
    failed = failed || finding.level == Finding::Level::kFail;
  };
  if (needs.node) {
    Findings findings = CheckThisNode(context, needs);
    if (needs.links) return ReportNodes(context, CompareWithRanks(context, std::move(findings)));
    for (const Finding& finding : findings) report(finding);
    return failed ? kExitFailed : kExitOk;
  }
  Findings findings{CheckPrograms(needs), CheckFuse(needs), CheckDisk(),    CheckMemory(context.globals.memory_budget),
                    CheckDescriptors(),   CheckCpu(),       CheckGpu(needs)};
  for (const Finding& finding : findings) report(finding);
  for (const Finding& finding : CheckStores(context, needs)) report(finding);
  return failed ? kExitFailed : kExitOk;
}

}  // namespace

void PrintFinding(const Context& context, const Finding& finding, const std::string& node) {
  if (context.globals.json) {
    Json line = jobs::ToJson(finding);
    if (!node.empty()) line["node"] = node;
    PrintJsonLine(line);
    return;
  }
  if (context.globals.quiet && finding.level == Finding::Level::kOk) return;
  const std::string limit = finding.limit.empty() ? "" : fmt::format(" (limit: {})", finding.limit);
  Print("{:<4}  {:<11}  {}{}\n", jobs::LevelName(finding.level), finding.check, finding.what, limit);
  if (!finding.advice.empty()) Print("{:<4}  {:<11}  -> {}\n", "", "", finding.advice);
}

void AddDoctorCommand(CLI::App& app, Context& context) {
  auto needs = std::make_shared<RequiredFeatures>();
  CLI::App* doctor = AddCommand(app, context, "doctor", "Check this machine, the credentials and the endpoint",
                                "  millrace doctor\n"
                                "  millrace doctor s3://runs --endpoint-url http://127.0.0.1:9000\n"
                                "  millrace doctor --mount --train && millrace mount s3://corpus /mnt/corpus\n"
                                "  millrace doctor --node s3://corpus\n"
                                "Exit status 1: something that was asked for cannot work.\n",
                                [&context, needs] { return Run(context, *needs); });
  doctor->add_option("url", needs->urls, "Buckets and folders to check");
  CLI::Option* node =
      doctor->add_flag("--node", needs->node,
                       "Only check whether this machine is fit for a job: clock, disk, memory, network, "
                       "how fast the URLs' objects are read, processor, shared memory, GPUs");
  doctor
      ->add_flag(
          "--links", needs->links,
          "With --node, as a rank of a job: also compare this machine with those of the other ranks, and measure "
          "the links between them")
      ->needs(node);
  doctor->add_flag("--mount", needs->mount, "Fail if mounts cannot work");
  doctor->add_flag("--train", needs->train, "Fail if `millrace train` is not installed");
  doctor->add_flag("--serve", needs->serve, "Fail if `millrace serve` is not installed");
  doctor->add_flag("--gpu", needs->gpu, "Fail if there is no GPU");
}

}  // namespace millrace::cli
