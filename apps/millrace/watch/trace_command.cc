// millrace job trace: fetches the trace of train.profile from the run's folder.
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "apps/common/output.h"
#include "apps/millrace/cli/cli.h"
#include "apps/millrace/jobs/bucket_jobs.h"
#include "millrace/base/files/files.h"
#include "millrace/base/text.h"
#include "millrace/jobs/spec/spec.h"
#include "millrace/jobs/state.h"
#include "millrace/object/blocking.h"
#include "millrace/object/connection.h"
#include "millrace/trace/trace_file.h"

namespace millrace::cli {
namespace {

struct TraceFlags {
  std::string target, steps, out;
};

/// The first and the last step of a trace.
struct TracedSteps {
  std::uint64_t first = 0, last = 0;
};

/// Reads "10-12".
std::optional<TracedSteps> ParseSteps(std::string_view text) {
  TracedSteps steps;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), text.data() + text.size(), steps.first);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != '-') return std::nullopt;
  const auto last = std::from_chars(first.ptr + 1, end, steps.last);
  if (last.ec != std::errc() || last.ptr != end || steps.last < steps.first) return std::nullopt;
  return steps;
}

/// Returns the folder of the run: `target` itself, or log.url of the job with that name.
Result<std::string> RunFolderOf(const std::string& target) {
  if (IsRunFolder(target)) return target;
  const auto root = MR_TRY(jobs::StateRoot());
  const jobs::JobStatus status = MR_TRY(jobs::ReadJob(root, target));
  const std::filesystem::path file = root / "jobs" / status.name / "job.yaml";
  const std::string text = MR_TRY(ReadFile(file, jobs::Spec::kMaxFile));
  const jobs::Spec spec = MR_TRY(jobs::Spec::Parse(text, file.string()));
  if (spec.log.url.empty()) {
    return Fail(Code::kNotFound, "job \"{}\" has no trace: it has neither log.url nor train.profile", target);
  }
  return spec.log.url;
}

/// Returns the steps of the traces in the folder, in order of their names: those that are joined, and those of ranks.
Result<std::vector<TracedSteps>> ListTraces(const object::ReadLocation& folder, const object::Call& call) {
  std::vector<TracedSteps> found;
  const std::string prefix = folder.key + "traces/steps-";
  const auto add = [&](std::string_view key, std::string_view suffix) {
    if (!key.starts_with(prefix) || !key.ends_with(suffix)) return;
    key.remove_prefix(prefix.size());
    key.remove_suffix(suffix.size());
    if (const auto steps = ParseSteps(key)) found.push_back(*steps);
  };
  MR_TRY(object::ListAll(
      *folder.store, {.prefix = prefix, .delimiter = "/"},
      [&](const object::ListPage& page) {
        for (const object::ObjectInfo& object : page.objects) add(object.key, ".json.gz");
        for (const std::string& common : page.common_prefixes) add(common, "/");
        return true;
      },
      call));
  return found;
}

Result<TracedSteps> ChooseSteps(const object::ReadLocation& folder, const std::string& url, const TraceFlags& flags,
                                const object::Call& call) {
  if (!flags.steps.empty()) {
    const auto steps = ParseSteps(flags.steps);
    if (!steps) return Fail(Code::kInvalidArgument, "--steps: should be the first and the last, such as 10-12");
    return *steps;
  }
  const std::vector<TracedSteps> found = MR_TRY(ListTraces(folder, call));
  if (found.empty()) {
    return Fail(Code::kNotFound,
                "{} has no trace: train.profile: {{steps: [10, 12]}} makes one, when the last of these steps is done",
                url);
  }
  const auto differs = [&](const TracedSteps& steps) {
    return steps.first != found.front().first || steps.last != found.front().last;
  };
  if (std::ranges::any_of(found, differs)) {
    std::set<std::string> names;  // a trace is there joined, and in a folder by rank
    for (const TracedSteps& steps : found) names.insert(fmt::format("{}-{}", steps.first, steps.last));
    return Fail(Code::kInvalidArgument, "{} has several traces: choose one by --steps: {}", url,
                fmt::join(names, ", "));
  }
  return found.front();
}

/// Joins the files of the ranks, as rank 0 does. For a run that was killed before it could.
Result<std::string> JoinRanks(const object::ReadLocation& folder, const TracedSteps& steps, const object::Call& call) {
  std::vector<std::string> traces;
  for (int rank = 0;; ++rank) {
    const std::string key = folder.key + trace::RankTraceKey(steps.first, steps.last, rank);
    const auto found = MR_TRY(object::GetAll(*folder.store, key, trace::kMaxTraceBytes, call));
    if (!found) break;
    traces.push_back(MR_TRY(trace::Decompress(found->bytes, trace::kMaxTraceBytes)));
  }
  return trace::Compress(MR_TRY(trace::JoinTraces(traces)));
}

Status FetchTrace(const Context& context, const TraceFlags& flags) {
  MR_TRY(RefuseDryRun(context, "job trace"));
  const std::string url = MR_TRY(RunFolderOf(flags.target));
  const auto connection = MR_TRY(context.Connect());
  object::Location folder = MR_TRY(object::Locate(*connection, url));
  if (!folder.key.empty() && !folder.key.ends_with('/')) folder.key += '/';
  const object::Call call{.stop = context.stop, .deadline = {}};
  const TracedSteps steps = MR_TRY(ChooseSteps(folder, url, flags, call));
  const auto found = MR_TRY(object::GetAll(*folder.store, folder.key + trace::TraceKey(steps.first, steps.last),
                                           trace::kMaxTraceBytes, call));
  const std::string packed = found ? found->bytes : MR_TRY(JoinRanks(folder, steps, call));
  const std::string name = fmt::format("trace-{}-{}.json.gz", steps.first, steps.last);
  const std::filesystem::path out = flags.out.empty() ? name : flags.out;
  std::error_code error;
  if (std::filesystem::exists(out, error)) {
    return Fail(Code::kAlreadyExists, "{} exists already: name another file with --out", out.string());
  }
  MR_TRY(WriteFileAtomic(out, AsBytes(packed)));
  if (context.globals.json) {
    Print("{}\n", DumpJson({{"file", out.string()},
                            {"first_step", steps.first},
                            {"last_step", steps.last},
                            {"bytes", packed.size()}}));
  } else {
    Print("{}: steps {} to {}, {}\n", out.string(), steps.first, steps.last, FormatBytes(packed.size()));
    Print("Open it at https://ui.perfetto.dev, which reads it in your browser, or in chrome://tracing.\n");
  }
  return {};
}

}  // namespace

void AddTraceCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<TraceFlags>();
  CLI::App* trace =
      AddCommand(*app.get_subcommand("job"), context, "trace", "Fetch the trace that train.profile makes, for Perfetto",
                 "  millrace job trace llama-demo\n"
                 "  millrace job trace s3://runs/llama-demo --steps 10-12 --out slow.json.gz",
                 [&context, flags] {
                   const Status done = FetchTrace(context, *flags);
                   return done ? kExitOk : ReportError(context, done.error());
                 });
  trace->add_option("NAME", flags->target, "The job's name, or the URL of its log.url")->required();
  trace->add_option("--steps", flags->steps, "The first and the last step, if there are several traces");
  trace->add_option("--out", flags->out, "The file to write [trace-FIRST-LAST.json.gz]");
}

}  // namespace millrace::cli
