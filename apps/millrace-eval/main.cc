// `millrace-eval`: measures a model on the documents of a task.
#include <unistd.h>

#include <cmath>

#include "apps/common/flag_checks.h"
#include "apps/common/globals.h"
#include "apps/common/output.h"
#include "apps/common/parse.h"
#include "millrace/base/files/files.h"
#include "millrace/base/json.h"
#include "millrace/base/process/cores.h"
#include "millrace/base/process/cpu.h"
#include "millrace/base/text.h"
#include "millrace/engine/runtime.h"
#include "millrace/eval/evaluate.h"
#include "millrace/object/blocking.h"
#include "millrace/object/connection.h"
#include "millrace/object/open/open.h"
#include "millrace/serve/engine/engine_model.h"

namespace millrace::cli {
namespace {

/// The largest file of documents.
constexpr std::uint64_t kMaxFileBytes = 1 * kGiB;

struct Arguments {
  Globals globals;
  serve::LoadOptions load;
  std::string task, data_url, shots_url, samples_file, add_bos = "auto", kv_cache = "auto";
  std::size_t limit = 0, shots = 0;
  eval::EvaluateOptions options;
  int threads = 0;
};

void AddFlags(CLI::App& app, Arguments& a) {
  AddGlobalFlags(app, a.globals);
  app.add_option("--model,model", a.load.model_url,
                 "URL of a run's checkpoints, an imported checkpoint, a Hugging Face folder, or an adapter")
      ->required();
  app.add_option(
         "--task", a.task,
         "perplexity: {\"text\"}; choice: {\"query\", \"choices\", \"gold\"}; hellaswag, mmlu: the lines of these data "
         "sets; match: {\"prompt\", \"answer\"}")
      ->required()
      ->check(OneOf({"perplexity", "choice", "hellaswag", "mmlu", "match"}));
  app.add_option("--data", a.data_url, "URL of the documents: a JSON object a line")->required();
  app.add_option("--limit", a.limit, "Use the first documents only; 0: all")->capture_default_str();
  app.add_option("--shots", a.shots, "Put so many answered questions before each question")
      ->check(Between(0, 1000))
      ->capture_default_str();
  app.add_option("--shots-data", a.shots_url, "URL of the answered questions, in the form of the documents");
  app.add_option("--until", a.options.until,
                 "match: a text that ends the answer (may be given several times; default: a "
                 "newline)")
      ->allow_extra_args(false);
  app.add_option("--max-tokens", a.options.most_tokens, "match: the most tokens of an answer")
      ->check(Between(1, 1 << 20))
      ->capture_default_str();
  app.add_flag("--ignore-case", a.options.ignore_case, "match: small and capital letters are equal");
  app.add_flag("--ignore-punctuation", a.options.ignore_punctuation, "match: punctuation does not count");
  app.add_option("--samples", a.samples_file,
                 "Write the result of each document to this file, as a JSON object a line");
  app.add_option("--step", a.load.step, "The checkpoint's step (default: the newest)");
  app.add_option("--tokenizer", a.load.tokenizer_url,
                 "URL of a tokenizer file, or of a model that has one (default: the model's own)");
  app.add_option("--precision", a.load.precision, "Precision of the weights and the computation")
      ->check(OneOf({"f32", "tf32", "bf16", "fp16"}))
      ->capture_default_str();
  app.add_option("--device", a.load.device, "Where it computes: an NVIDIA GPU if there is one (auto), cpu, or cuda")
      ->check(OneOf({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--add-bos", a.add_bos, "Begin texts with the beginning-of-text token: auto, on, off")
      ->check(OneOf({"auto", "on", "off"}))
      ->capture_default_str();
  app.add_option("--max-batch", a.options.most_texts, "Most texts that the model computes at a time")
      ->check(Between(1, 1 << 12))
      ->capture_default_str();
  app.add_option("--kv-cache", a.kv_cache,
                 "Memory for the keys and values of all texts: 4GiB, or what 8 of full length take (auto)")
      ->capture_default_str();
  app.add_option("--threads", a.threads, "Compute threads; 0: OMP_NUM_THREADS, or one per core that may be used")
      ->check(Between(0, 1024))
      ->capture_default_str();
  app.footer(
      "Examples:\n"
      "  millrace eval s3://runs/llama-demo --task perplexity --data s3://data/held-out.jsonl\n"
      "  millrace eval s3://models/llama-2-7b --task hellaswag --data s3://eval/hellaswag_val.jsonl --limit 1000\n"
      "  millrace eval s3://models/llama-2-7b --task mmlu --data s3://eval/mmlu_test.jsonl --shots 5 --shots-data "
      "s3://eval/mmlu_dev.jsonl\n"
      "  millrace eval s3://runs/tuned --task match --data s3://eval/questions.jsonl --json");
}

Result<std::vector<eval::Document>> ReadDocuments(object::Connection& connection, eval::Task task,
                                                  const std::string& url, std::size_t limit, const object::Call& call) {
  const auto file = MR_TRY(object::Locate(connection, url));
  const auto content = MR_TRY(object::GetAll(*file.store, file.key, kMaxFileBytes, call));
  if (!content) return Fail(Code::kNotFound, "there is no file {}; check the path", url);
  auto documents = MR_TRY(eval::ParseDocuments(task, content->bytes, url, limit > 0 ? limit : content->bytes.size()));
  if (documents.empty()) return Fail(Code::kInvalidArgument, "{} has no documents; give records in JSON lines", url);
  return documents;
}

Json NumberOrNull(double number) { return std::isfinite(number) ? Json(number) : Json(nullptr); }

Json ToJson(const eval::Metric& metric) {
  return {{"value", NumberOrNull(metric.value)}, {"stderr", NumberOrNull(metric.standard_error)}};
}

Status WriteSamples(const std::string& path, const eval::Evaluation& evaluation) {
  std::string lines;
  std::size_t number = 0;
  for (const eval::DocumentResult& each : evaluation.documents) {
    Json line = {{"document", number++}};
    if (!each.logprobs.empty()) line["logprobs"] = each.logprobs;
    if (each.logprobs.empty()) line["said"] = each.said;
    if (each.logprobs.size() != 1) line["right"] = each.is_right;
    lines += DumpJson(line) + "\n";
  }
  return WriteFileAtomic(path, AsBytes(lines));
}

void Report(const Arguments& a, const serve::LoadedModel& loaded, std::size_t documents,
            const eval::Evaluation& evaluation, double seconds) {
  if (a.globals.json) {
    Json metrics = Json::object(), subjects = Json::object();
    for (const eval::Metric& metric : evaluation.metrics) metrics[metric.name] = ToJson(metric);
    for (const auto& [subject, metric] : evaluation.subjects) subjects[subject] = ToJson(metric);
    Json report = {{"model", loaded.source},
                   {"task", a.task},
                   {"data", a.data_url},
                   {"documents", documents},
                   {"shots", a.shots},
                   {"metrics", std::move(metrics)},
                   {"scored_tokens", evaluation.scored_tokens},
                   {"computed_tokens", evaluation.computed_tokens},
                   {"seconds", seconds}};
    if (!subjects.empty()) report["subjects"] = std::move(subjects);
    Print("{}\n", DumpJson(report));
    return;
  }
  Print("{}: {} on {} document{} of {}\n", loaded.source, a.task, documents, documents == 1 ? "" : "s", a.data_url);
  const auto print = [](const eval::Metric& metric, std::string_view name) {
    if (std::isfinite(metric.standard_error)) {
      Print("  {:<18} {:.4f} ± {:.4f}\n", name, metric.value, metric.standard_error);
    } else {
      Print("  {:<18} {:.4f}\n", name, metric.value);
    }
  };
  for (const eval::Metric& metric : evaluation.metrics) print(metric, metric.name);
  for (const auto& [subject, metric] : evaluation.subjects) print(metric, subject);
}

Status Run(Arguments a, std::stop_token stop) {
  const object::Call call{.stop = stop, .deadline = {}};
  const eval::Task task = *eval::ParseTask(a.task);
  Logger log = Logger::Stderr(a.globals.log_level);
  if ((a.shots > 0) == a.shots_url.empty()) {
    return Fail(Code::kInvalidArgument, "--shots and --shots-data belong together");
  }
  if (a.shots > 0 && task == eval::Task::kPerplexity) {
    return Fail(Code::kInvalidArgument, "--shots: perplexity is of whole texts, and has no questions");
  }
  engine::ConfigureRuntime(a.threads > 0 ? a.threads : ComputeThreads());
  object::ConnectOptions connect = a.globals.connect;
  connect.log = log;
  if (!connect.first_contact) connect.first_contact = kFirstContact;
  const auto connection = MR_TRY(object::OpenConnection(std::move(connect)));
  // The documents come first: reading them takes no time, and they are where mistakes are.
  auto documents = MR_TRY(ReadDocuments(*connection, task, a.data_url, a.limit, call));
  std::vector<eval::Document> examples;
  if (a.shots > 0) examples = MR_TRY(ReadDocuments(*connection, task, a.shots_url, 0, call));
  MR_TRY(eval::AddExamples(documents, examples, a.shots));
  if (a.kv_cache != "auto") {
    const auto bytes = ParseBytes(a.kv_cache);
    if (!bytes) return Fail(bytes.error().code(), "--kv-cache: {}", bytes.error().ToString());
    a.load.kv_cache_bytes = *bytes;
  }
  const auto loaded = MR_TRY(serve::LoadModel(*connection, a.load, log, call));
  if (!loaded.generates) {
    return Fail(Code::kUnsupported, "{} makes embeddings and no texts, so there is nothing to measure", loaded.source);
  }
  a.options.add_bos = a.add_bos == "on" || (a.add_bos == "auto" && loaded.add_bos);
  a.options.ends = loaded.ends;
  const bool shows = a.globals.progress == "on" || (a.globals.progress == "auto" && !a.globals.quiet &&
                                                    !a.globals.json && ::isatty(STDERR_FILENO) != 0);
  const TimePoint begin = SystemClock().Now();
  const auto evaluation = MR_TRY(eval::Evaluate(
      *loaded.model, *loaded.tokenizer, task, documents, a.options, stop, [&](std::size_t done, std::size_t all) {
        if (shows) WriteErrorControls(fmt::format("\r{} of {}{}", done, all, done == all ? "\r\033[K" : ""));
      }));
  const double seconds = std::chrono::duration<double>(SystemClock().Now() - begin).count();
  if (!a.samples_file.empty()) MR_TRY(WriteSamples(a.samples_file, evaluation));
  Report(a, loaded, documents.size(), evaluation, seconds);
  return {};
}

int Main(int argc, char** argv) {
  if (auto ready = EnsureComputeEnvironment(argv); !ready) PrintError("millrace eval: {}\n", ready.error().ToString());
  SignalStop signals;
  Arguments arguments;
  CLI::App app("Measure a model: perplexity, multiple choice, exact match.", "millrace eval");
  app.set_version_flag("--version", "millrace " MILLRACE_VERSION);
  AddFlags(app, arguments);
  if (const auto status = ParseOrExit(app, argc, argv)) return *status;
  const auto done = Run(std::move(arguments), signals.token());
  if (!done) PrintError("millrace eval: {}\n", done.error().ToString());
  if (!FinishOutput()) return 1;
  return done ? 0 : ToExitStatus(done.error().code());
}

}  // namespace
}  // namespace millrace::cli

int main(int argc, char** argv) { return millrace::cli::Main(argc, argv); }
