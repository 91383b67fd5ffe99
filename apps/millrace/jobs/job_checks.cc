#include "apps/millrace/jobs/job_checks.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <optional>

#include "apps/millrace/jobs/job_source.h"
#include "apps/millrace/jobs/plan_command.h"
#include "millrace/base/config.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/process/cores.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/text.h"
#include "millrace/checkpoint/format/manifest.h"
#include "millrace/checkpoint/read/catalog.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/data/documents/field_mismatch.h"
#include "millrace/data/sources/sources.h"
#include "millrace/engine/config/families.h"
#include "millrace/http/server/server.h"
#include "millrace/jobs/health/node_checks.h"
#include "millrace/jobs/source/source_archive.h"
#include "millrace/jobs/spec/foreign_program.h"
#include "millrace/jobs/spec/model_config.h"
#include "millrace/jobs/training_setup.h"
#include "millrace/object/blocking.h"
#include "millrace/object/open/open.h"
#include "millrace/tokenizer/open/open.h"

namespace millrace::cli {
namespace {

using Level = Finding::Level;

constexpr auto kCheckPatience = std::chrono::seconds(10);

/// Returns whether an error may be temporary. A job starts despite such an error, because its ranks retry for longer.
bool MayPass(Code code) {
  return code == Code::kUnavailable || code == Code::kThrottled || code == Code::kDeadlineExceeded;
}

class JobChecker {
 public:
  JobChecker(const Context& context, const jobs::Spec& spec, bool starts)
      : context_(context), spec_(spec), if_silent_(starts ? Level::kWarn : Level::kFail) {}

  JobChecks Run(const std::filesystem::path& program) {
    if (!IsElsewhere()) CheckProgram(program);
    CheckMachine();
    object::ConnectOptions options = context_.globals.connect;
    options.max_attempts = 2;
    options.log = context_.log();
    auto connection = object::OpenConnection(std::move(options));
    if (!connection) {
      Failed(connection.error().code(), "connection", connection.error().ToString(), "");
      return std::move(checks_);
    }
    connection_ = *std::move(connection);
    if (spec_.run.command.empty()) {
      CheckTraining();
    } else {
      CheckFolders();
    }
    if (!spec_.log.url.empty()) {
      Check("log", "check log.url and the rights there", [&] { return Write(spec_.log.url); });
    }
    if (!spec_.log.tensorboard.empty()) {
      Check("tensorboard", "check log.tensorboard and the rights there", [&] { return Write(spec_.log.tensorboard); });
    }
    if (spec_.run.launcher == "local") CheckSidecars();
    return std::move(checks_);
  }

 private:
  /// Hosts and pods have programs and disks of their own.
  bool IsElsewhere() const { return spec_.run.launcher == "ssh" || spec_.run.in_pods(); }

  void CheckTraining() {
    Check("data", "check data.sources: `millrace ls` shows what there is",
          [&] { return LookAtData(spec_.data.dataset.sources); });
    if (!spec_.eval.sources.empty()) {
      Check("eval data", "check eval.sources: `millrace ls` shows what there is",
            [&] { return LookAtData(spec_.eval.sources); });
    }
    Check("tokenizer", "check data.tokenizer", [&] { return LookAtTokenizer(); });
    if (!spec_.model.from.empty()) Check("model", "check model.from", [&] { return LookAtModel(); });
    if (!spec_.checkpoint.url.empty()) {
      Check("checkpoints", "check checkpoint.url and the rights there: list, read, write, delete",
            [&] { return LookAtCheckpoints(); });
    }
    if (!spec_.data.dataset.cache_url.empty()) {
      Check("index cache", "check data.index_cache and the rights there",
            [&] { return Write(spec_.data.dataset.cache_url); });
    }
    if (IsElsewhere()) return;
    CheckMemory();
    CheckMetricsPort();
    if (const auto& local = spec_.checkpoint.local) CheckFolder("local disk", "checkpoint.local.path", local->path);
    CheckFolder("data cache", "data.cache.path", spec_.data.dataset.disk_cache.native());
  }

  /// Asks the planner whether the ranks fit this machine.
  void CheckMemory() {
    if (spec_.run.launcher != "local" || silent_) return;
    const int ranks = spec_.run.processes_per_node, cores = UsableCores();
    constexpr int kManyRanks = 4;  // of a core: tests of layouts have as many
    if (jobs::WantedGpus(spec_) == 0 && ranks > kManyRanks * cores) {
      Add(Level::kWarn, "cores", fmt::format("{} ranks share {} core{}", ranks, cores, cores == 1 ? "" : "s"),
          "lower run.processes_per_node: ranks that wait for each other are slow");
    }
    const auto forecast = ForecastMemory(context_, spec_);
    if (!forecast) return;  // ranks say what is wrong with the model or the layout
    const auto size = [](double bytes) { return FormatBytes(static_cast<std::uint64_t>(bytes)); };
    const std::string what =
        fmt::format("a rank needs about {} of the {} that it may use", size(forecast->bytes), size(forecast->limit));
    if (forecast->fits) return Add(Level::kOk, "memory", what);
    constexpr std::string_view kCure =
        "lower train.micro_batch or data.sequence_length, set train.recompute, or use a smaller model: `millrace job "
        "plan` lists what takes how much";
    // A plan is an estimate: a job that may just fit is only warned of.
    constexpr double kHopeless = 1.5;
    if (forecast->bytes < kHopeless * forecast->limit) return Add(Level::kWarn, "memory", what, kCure);
    Failed(Code::kResourceExhausted, "memory", what, kCure);
  }

  /// A second job with the same port would fail when its rank 0 has started.
  void CheckMetricsPort() {
    const std::string& listen = spec_.log.metrics_listen;
    if (listen.empty() || spec_.run.launcher != "local") return;
    const auto server = http::Server::Start({.listen = listen}, [](http::ServerRequest&, http::ServerResponse&) {});
    if (server) return Add(Level::kOk, "metrics", fmt::format("{} is free", listen));
    Failed(server.error().code(), "metrics", fmt::format("log.metrics_listen: {}", server.error().ToString()),
           "another job may have the port: choose another, or 127.0.0.1:0 for a free one");
  }

  /// Checks the folders of a program of the user's own.
  void CheckFolders() {
    const jobs::ForeignProgram program = *jobs::ForeignProgramOf(spec_);
    CheckSource();
    const bool mounts = !program.mounts.empty() || !program.checkpoint_url.empty();
    if (mounts && spec_.run.launcher == "local" && ::access("/dev/fuse", R_OK | W_OK) != 0) {
      Failed(Code::kUnsupported, "mounts", "/dev/fuse cannot be opened",
             "load the module fuse and check the device's rights: `millrace doctor` says more");
    }
    std::vector<jobs::FolderMount> folders = program.mounts;
    std::ranges::copy(jobs::PodMounts(spec_), std::back_inserter(folders));
    for (const jobs::FolderMount& mount : folders) {
      Check("mount", "check run.mounts: `millrace ls` shows what there is", [&] { return LookAtMount(mount); });
    }
    if (!program.checkpoint_url.empty()) {
      Check("checkpoints", "check checkpoint.url and the rights there: list, read, write, delete",
            [&] { return LookAtCheckpoints(); });
    }
  }

  /// Checks the code that travels with the job.
  void CheckSource() {
    if (spec_.run.source.empty() || jobs::SourceDigest(spec_.run.source)) return;
    const auto described = DescribeSource(spec_);
    if (!described) {
      const bool absent = described.error().code() == Code::kNotFound;
      return Failed(described.error().code(), "source", described.error().ToString(),
                    absent ? "check run.source: a relative path counts from the working directory" : "");
    }
    Add(Level::kOk, "source", *described);
  }

  /// Checks what runs beside rank 0: Python, W&B's package, and the user's file.
  void CheckSidecars() {
    if (!spec_.log.wandb && spec_.log.callbacks.empty()) return;
    const std::string& python = spec_.log.python;
    if (const auto found = FindProgram(python); !found || ::access(found->c_str(), X_OK) != 0) {
      return Failed(Code::kInvalidArgument, "python", fmt::format("{} cannot be run as a program", python),
                    "install Python 3, or set log.python");
    }
    if (spec_.log.wandb) {
      // Looks for the package, which loads in seconds, and does not load it.
      constexpr std::string_view kLook =
          "import importlib.util as u, sys\nsys.path[:] = filter(None, sys.path)\nfound = u.find_spec('wandb')\n"
          "sys.exit(not (found and found.origin))";
      const auto looked = Subprocess::Run(
          {.argv = {python, "-c", std::string(kLook)}, .env = spec_.run.env, .stderr_file = "/dev/null"});
      if (!looked || !looked->state.ok()) {
        Failed(Code::kInvalidArgument, "wandb", fmt::format("{} has no package wandb", python),
               fmt::format("{} -m pip install wandb, or set log.python", python));
      } else {
        Add(Level::kOk, "wandb", fmt::format("{} has the package", python));
      }
    }
    if (spec_.log.callbacks.empty()) return;
    if (::access(spec_.log.callbacks.c_str(), R_OK) != 0) {
      Failed(Code::kInvalidArgument, "callbacks", fmt::format("{} cannot be read", spec_.log.callbacks),
             "check log.callbacks: an absolute path on this machine");
    } else {
      Add(Level::kOk, "callbacks", spec_.log.callbacks);
    }
  }

  Result<std::string> LookAtMount(const jobs::FolderMount& mount) {
    const object::Location location = MR_TRY(FolderAt(mount.url));
    MR_TRY(object::List(*location.store, {.prefix = location.key, .max_keys = 1}, NewCall()));
    return fmt::format("{} can be listed; it is mounted on {}{}", mount.url, mount.path,
                       mount.read_only ? ", for reading" : "");
  }

  void Add(Level level, std::string check, std::string what, std::string_view advice = "") {
    checks_.findings.push_back({level, std::move(check), std::move(what), std::string(advice)});
  }
  void Failed(Code code, std::string check, std::string what, std::string_view advice) {
    if (!checks_.failure) checks_.failure = code;
    Add(Level::kFail, std::move(check), std::move(what), advice);
  }

  object::Call NewCall() const {
    return {.stop = context_.stop, .deadline = Deadline::After(SystemClock(), kCheckPatience)};
  }

  /// Adds the finding of `look`: the text that it returns, or its error with the advice `cure`.
  template <class Look>
  void Check(std::string name, std::string_view cure, Look look) {
    if (silent_) {
      return Add(if_silent_, std::move(name), "not checked: the store does not answer");
    }
    const Result<std::string> found = look();
    if (found) {
      Add(Level::kOk, std::move(name), *found);
    } else if (MayPass(found.error().code())) {
      silent_ = true;
      if (if_silent_ == Level::kFail) checks_.failure = checks_.failure.value_or(found.error().code());
      Add(if_silent_, std::move(name), found.error().ToString(),
          "check --endpoint-url (or AWS_ENDPOINT_URL) and the network: millrace doctor URL");
    } else {
      const bool refused = found.error().code() == Code::kPermissionDenied;
      Failed(found.error().code(), std::move(name), found.error().ToString(),
             refused ? "check the credentials and their rights: `millrace doctor URL`" : cure);
    }
  }

  void CheckProgram(const std::filesystem::path& program) {
    if (!spec_.run.command.empty()) return CheckCommand();
    if (::access(program.c_str(), X_OK) == 0) {
      Add(Level::kOk, "program", program.string());
    } else {
      Failed(Code::kNotFound, "program", fmt::format("{} cannot be run", program.string()),
             "build Millrace with its engine (`make build`), or install it: `millrace doctor --train`");
    }
  }

  /// Agents check the machines of other launchers.
  void CheckMachine() {
    if (spec_.run.launcher != "local" || spec_.run.health_checks.empty()) return;
    const jobs::HealthOptions options{
        .checks = spec_.run.health_checks, .gpus = jobs::WantedGpus(spec_), .passive = true};
    for (jobs::Finding& finding : jobs::CheckNode(options, {}, SystemClock(), context_.stop)) {
      if (finding.level == Level::kFail) {
        Failed(Code::kPreconditionFailed, finding.check, finding.what, finding.advice);
      } else if (finding.level == Level::kWarn) {
        checks_.findings.push_back(std::move(finding));
      }
    }
  }

  /// Other machines may have other programs, so only this machine's are checked.
  void CheckCommand() {
    if (spec_.run.launcher != "local") return;
    std::string name = spec_.run.command.front();
    const std::string& source = spec_.run.source;
    if (!source.empty() && name.find('/') != name.npos && !name.starts_with('/')) {
      if (jobs::SourceDigest(source)) return;  // it is in the archive
      name = (std::filesystem::path(object::ParseUrl(source)->key) / name).string();
    }
    if (const auto found = FindProgram(name); found && ::access(found->c_str(), X_OK) == 0) {
      Add(Level::kOk, "program", *found);
    } else {
      Failed(Code::kNotFound, "program", fmt::format("{} cannot be run as a program", name),
             "check run.command: a name is looked up in PATH, a path is relative to the folder where it runs");
    }
  }

  Result<std::string> LookAtData(const std::vector<data::DataSource>& sources) {
    std::shared_ptr<const tokenizer::Tokenizer> tokenizer;
    if (spec_.data.dataset.layout == "auto") {
      tokenizer = MR_TRY(tokenizer::OpenTokenizer(*connection_, spec_.data.tokenizer, context_.log(), NewCall()));
    }
    const auto form = MR_TRY(data::DocumentForm::Make(spec_.data.dataset, tokenizer.get()));
    const auto resolved = MR_TRY(data::ResolveSources(*connection_, sources, NewCall(), form.all_fields()));
    std::uint64_t bytes = 0;
    for (const data::DataObject& object : resolved.objects) bytes += object.info.size;
    // The rights to list and to read are separate.
    const data::DataObject& first = resolved.objects.front();
    std::byte byte{};
    const auto read = MR_TRY(object::Get(*first.store, first.info.key, {.range = object::ByteRange{0, 1}},
                                         MutableByteSpan(&byte, 1), NewCall()));
    if (!read)
      return Fail(Code::kNotFound, "{} is listed but cannot be read; check the right to read objects", first.url);
    const auto mismatch = data::FindFieldMismatch(first, form, NewCall());
    // The first part of a large object may take longer than this check.
    if (!mismatch && !MayPass(mismatch.error().code())) return Fail(mismatch.error());
    if (mismatch && *mismatch && (*mismatch)->in_all) {
      return Fail(Code::kInvalidArgument, "{}: {}; see data.template, data.mode and data.layout", first.url,
                  (*mismatch)->ToString());
    }
    const auto refusal = data::FindTemplateRefusal(first, form, NewCall());
    if (!refusal && !MayPass(refusal.error().code())) return Fail(refusal.error());
    if (refusal && !refusal->empty()) {
      return Fail(Code::kInvalidArgument, "{}: {}; see data.layout", first.url, *refusal);
    }
    return fmt::format("{} object{}, {}", FormatCount(resolved.objects.size()), resolved.objects.size() == 1 ? "" : "s",
                       FormatBytes(bytes));
  }

  Result<std::string> LookAtTokenizer() {
    auto opened = tokenizer::OpenTokenizer(*connection_, spec_.data.tokenizer, context_.log(), NewCall());
    if (!opened && opened.error().code() == Code::kNotFound) {
      return Fail(Code::kNotFound, "{}{}", opened.error().ToString(), HubHint(spec_.data.tokenizer));
    }
    const auto tokenizer = MR_TRY(std::move(opened));
    const int pieces = tokenizer->vocab_size();
    if (spec_.model.from.empty() && spec_.model.vocab_size > 0 && spec_.model.vocab_size < pieces) {
      return Fail(Code::kInvalidArgument,
                  "{} makes {} tokens, the model has {}: set model.config.vocab_size to 0 or to {}",
                  spec_.data.tokenizer, pieces, spec_.model.vocab_size, pieces);
    }
    return fmt::format("{}, {} pieces", spec_.data.tokenizer, FormatCount(static_cast<std::uint64_t>(pieces)));
  }

  Result<std::string> LookAtModel() {
    const object::Location location = MR_TRY(FolderAt(spec_.model.from));
    const auto page =
        MR_TRY(object::List(*location.store, {.prefix = location.key, .delimiter = "/", .max_keys = 1}, NewCall()));
    if (!page.objects.empty() || !page.common_prefixes.empty()) return spec_.model.from;
    // It may be one file: a GGUF file, or a *.safetensors.
    const object::Location file = MR_TRY(object::Locate(*connection_, spec_.model.from));
    const bool is_file = !file.key.empty() && !file.key.ends_with('/');
    if (is_file && MR_TRY(object::Head(*file.store, file.key, NewCall()))) return spec_.model.from;
    return Fail(Code::kNotFound, "there is nothing at {}{}; check the URL with `millrace ls`", spec_.model.from,
                HubHint(spec_.model.from));
  }

  /// "meta-llama/Llama-2-7b-hf" is a model of the hub to most users, and a path here.
  static std::string HubHint(std::string_view url) {
    const bool is_name =
        std::ranges::count(url, '/') == 1 && !url.starts_with('.') && !url.starts_with('/') && !url.ends_with('/');
    return is_name ? fmt::format("; the model of this name of the Hugging Face hub is hf://{}/", url) : "";
  }

  Result<std::string> LookAtCheckpoints() {
    const object::Location location = MR_TRY(FolderAt(spec_.checkpoint.url));
    const auto saved = MR_TRY(checkpoint::ListCheckpoints(location, NewCall()));
    if (!saved.empty() && spec_.run.command.empty()) MR_TRY(LookAtEarlierRun(saved.back().step));
    return Write(spec_.checkpoint.url);
  }

  /// Refuses to go on from a checkpoint of another model. Warns if a job of another name saved the checkpoint.
  Status LookAtEarlierRun(std::uint64_t step) {
    const auto reader = checkpoint::Reader::Open(*connection_, spec_.checkpoint.url, step, NewCall());
    if (!reader) return {};  // a damaged one: ranks go back to one before
    const Json& meta = (*reader)->manifest().meta;
    const std::string owner = JobNameOf(meta);
    const bool is_own = owner.empty() || owner == spec_.name;
    if (const Json* there = JsonFind(meta, checkpoint::kMetaModelConfig); there != nullptr) {
      if (const std::string difference = DifferenceFrom(*there); !difference.empty()) {
        return Fail(Code::kPreconditionFailed,
                    "step {} there{} is of another model: {}. Use another checkpoint.url, or remove the old "
                    "checkpoints: millrace rm -r {}",
                    step, is_own ? "" : fmt::format(", of job {},", owner), difference, spec_.checkpoint.url);
      }
    }
    if (!is_own) {
      Add(Level::kWarn, "checkpoints",
          fmt::format("job {} goes on from step {} of job {} at {}", spec_.name, step, owner, spec_.checkpoint.url),
          "use another checkpoint.url, unless this is what you want");
    }
    return {};
  }

  /// Returns in what a stored model differs from the job's; "" if in nothing, or if the job's is not known.
  std::string DifferenceFrom(const Json& stored) const {
    if (spec_.model.from.empty()) return engine::DifferenceOfModels(stored, jobs::ModelConfigOf(spec_));
    const auto wanted = StoredModelConfig(context_, spec_.model.from);
    return wanted ? engine::DifferenceOfModels(stored, *wanted) : "";
  }

  /// Returns the name of the job that saved a checkpoint; "" if the checkpoint does not tell.
  static std::string JobNameOf(const Json& meta) {
    const Json* job = JsonFind(meta, "job");
    if (job == nullptr || !job->is_string()) return "";
    const auto document = config::Document::Parse(job->get_ref<const std::string&>(), "the job of a checkpoint");
    return document ? document->Root()["name"].String().value_or("") : "";
  }

  Result<object::Location> FolderAt(const std::string& url) {
    object::Location location = MR_TRY(object::Locate(*connection_, url));
    if (!location.key.empty() && !location.key.ends_with('/')) location.key += '/';
    return location;
  }

  /// Puts an object with a new key, reads it, checks that a second conditional put is refused, and deletes it. In a
  /// folder of this machine it puts nothing, since that would make the folder.
  Result<std::string> Write(const std::string& url) {
    if (const object::Url parsed = MR_TRY(object::ParseUrl(url)); parsed.scheme == object::Url::Scheme::kFile) {
      MR_TRY(CheckWritable(parsed.key));
      return fmt::format("{} can be written", url);
    }
    const object::Location folder = MR_TRY(FolderAt(url));
    const std::string key = fmt::format("{}.millrace/check-{}", folder.key, SecureHex(8));
    const std::string_view text = "millrace looks whether it may write here\n";
    constexpr std::uint64_t kMaxBytes = 4096;
    const auto put = [&] { return object::Put(*folder.store, key, AsBytes(text), {.if_none_match = true}, NewCall()); };
    if (auto first = put(); !first) return Fail(first.error().Context(fmt::format("writing to {}", url)));
    const auto looked = [&]() -> Status {
      const auto read = MR_TRY(object::GetAll(*folder.store, key, kMaxBytes, NewCall()));
      if (!read || read->bytes != text)
        return Fail(Code::kCorrupt, "{}: the store returns other bytes than were written", url);
      const auto again = put();
      if (again) {
        return Fail(Code::kUnsupported,
                    "{}: the store ignores If-None-Match, so two jobs could overwrite each other's checkpoints; use a "
                    "store with conditional writes",
                    url);
      }
      if (again.error().code() != Code::kPreconditionFailed) return Fail(again.error());
      return {};
    }();
    const Status deleted = object::Delete(*folder.store, key, NewCall());
    MR_TRY(looked);
    if (!deleted) {
      Add(Level::kWarn, "delete", fmt::format("deleting from {}: {}", url, deleted.error().ToString()),
          "without the right to delete, old checkpoints and the test object of this check stay");
    }
    return fmt::format("{} can be listed, read and written; conditional writes work", url);
  }

  void CheckFolder(std::string name, std::string_view key, const std::string& path) {
    if (path.empty()) return;
    if (const Status writable = CheckWritable(path)) {
      Add(Level::kOk, std::move(name), path);
    } else {
      Failed(writable.error().code(), std::move(name), writable.error().ToString(),
             fmt::format("name another folder in {}, or change its owner or mode", key));
    }
  }

  /// Missing folders are made later, below the nearest folder that exists.
  static Status CheckWritable(const std::filesystem::path& path) {
    std::error_code error;
    std::filesystem::path folder = std::filesystem::absolute(path, error);
    while (!std::filesystem::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
    if (std::filesystem::is_directory(folder, error) && ::access(folder.c_str(), W_OK | X_OK) == 0) return {};
    return Fail(Code::kPermissionDenied, "cannot write to {}; change the folder's owner or mode", folder.string());
  }

  const Context& context_;
  const jobs::Spec& spec_;
  const Level if_silent_;
  std::unique_ptr<object::Connection> connection_;
  bool silent_ = false;  ///< the store did not answer
  JobChecks checks_;
};

}  // namespace

JobChecks CheckJob(const Context& context, const jobs::Spec& spec, const std::filesystem::path& program, bool starts) {
  return JobChecker(context, spec, starts).Run(program);
}

}  // namespace millrace::cli
