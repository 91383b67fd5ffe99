#include "apps/millrace/jobs/background_jobs.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "apps/common/output.h"
#include "millrace/base/files/files.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/jobs/state.h"

namespace millrace::cli {
namespace {

/// What a supervisor in the background prints when it no longer needs the process that started it.
constexpr std::string_view kDetached = "detached\n";

}  // namespace

Result<BackgroundStart> StartInBackground(const Context& context, const jobs::Spec& spec, const std::string& program) {
  const std::filesystem::path root = MR_TRY(jobs::StateRoot());
  if (const auto known = jobs::ReadJob(root, spec.name); known && known->active()) {
    return Fail(Code::kBusy, "job \"{}\" is {} already; `millrace job stop {}` ends it", spec.name, known->state,
                spec.name);
  }
  const TempDir folder = MR_TRY(TempDir::Create());
  const std::filesystem::path job_file = folder.path() / "job.yaml";
  MR_TRY(WriteFileAtomic(job_file, AsBytes(spec.Render())));
  const std::filesystem::path here = MR_TRY(ProgramDirectory());
  Subprocess::Options options{
      .argv = {(here / "millrace").string(), "job", "run", "--no-check", "--detached", job_file.string()},
      .env = GlobalsEnvironment(context.globals),
      .capture_stdout = true,
      .own_process_group = false,  // only a process that leads no group can make a session
      .die_with_parent = false};
  if (!program.empty()) {
    options.argv.insert(options.argv.end(), {"--program", std::filesystem::absolute(program).string()});
  }
  Subprocess supervisor = MR_TRY(Subprocess::Start(std::move(options)));
  constexpr std::size_t kMaxWords = 64 * kKiB;
  const std::string words = MR_TRY(supervisor.ReadStdout(kMaxWords));
  if (!words.ends_with(kDetached)) {
    const ExitState ended = *supervisor.Wait();
    if (ended.signal == 0 && ended.exit_code != 0) return BackgroundStart{.exit_status = ended.exit_code};
    return Fail(Code::kInternal, "the supervisor of job \"{}\" ended with {}", spec.name, ended.ToString());
  }
  const std::int64_t pid = supervisor.pid();
  supervisor.Detach();
  return BackgroundStart{.pid = pid};
}

Result<int> SubmitHere(const Context& context, const jobs::Spec& spec, const std::string& program) {
  const BackgroundStart started = MR_TRY(StartInBackground(context, spec, program));
  if (started.exit_status != kExitOk) return started.exit_status;
  if (context.globals.json) {
    PrintJsonLine({{"event", "submitted"}, {"name", spec.name}, {"launcher", spec.run.launcher}, {"pid", started.pid}});
    return kExitOk;
  }
  Print("job {} runs in the background (process {})\n", spec.name, started.pid);
  for (const auto& [command, what] :
       {std::pair("status", "its state and its ranks"), std::pair("attach", "rank 0's output until it ends"),
        std::pair("stop", "save a checkpoint and stop")}) {
    Print("  millrace job {:<6} {}   # {}\n", command, spec.name, what);
  }
  return kExitOk;
}

Status LeaveTerminal(const std::filesystem::path& log) {
  const UniqueFd nothing = MR_TRY(OpenFile("/dev/null", O_RDWR));
  const UniqueFd words = MR_TRY(OpenFile(log, O_WRONLY | O_CREAT | O_APPEND));
  if (::setsid() < 0) return Fail(ErrnoError(errno, "cannot leave the terminal"));
  Print("{}", kDetached);
  FlushOutput();
  // The process that started this one waits for the end of the pipe behind standard output.
  if (::dup2(nothing.get(), STDIN_FILENO) < 0 || ::dup2(words.get(), STDERR_FILENO) < 0 ||
      ::dup2(nothing.get(), STDOUT_FILENO) < 0) {
    return Fail(ErrnoError(errno, "cannot leave the terminal"));
  }
  return {};
}

}  // namespace millrace::cli
