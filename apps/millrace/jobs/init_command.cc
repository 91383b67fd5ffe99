// millrace init: writes a job file from three answers: which data, which model, which machine.
#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "apps/millrace/cli/cli.h"
#include "millrace/base/files/files.h"
#include "millrace/base/json.h"
#include "millrace/checkpoint/read/model_source.h"
#include "millrace/checkpoint/read/reader.h"
#include "millrace/data/records/content.h"
#include "millrace/data/sources/sources.h"
#include "millrace/object/url.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

/// The fields of a longer record are not looked at.
constexpr std::uint64_t kMaxOfRecord = 4 * kMiB;
/// The model that is not there yet.
constexpr std::string_view kNewModel = "new";

struct InitFlags {
  std::string file = "job.yaml", data, model, machine, tokenizer, checkpoints, name;
  bool force = false;
};

/// What a record teaches, and the keys of `data` that read it.
struct RecordForm {
  enum class Lesson { kTexts, kAnswers, kPreferences };
  Lesson lesson = Lesson::kTexts;
  std::string keys;   ///< lines of YAML below `data`, each with its comment
  std::string words;  ///< what it is, for the user
};

/// The machine of a job: "cpu", "gpu", "gpu:8" or "slurm:2x8".
struct JobMachine {
  bool gpu = false, slurm = false;
  int nodes = 1, per_node = 1;

  int ranks() const { return nodes * per_node; }
};

std::optional<int> ParseCount(std::string_view text) {
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 1 || count > 256) return std::nullopt;
  return count;
}

Result<JobMachine> ParseMachine(std::string_view text) {
  const auto colon = text.find(':');
  const std::string_view kind = text.substr(0, colon);
  const std::string_view size = colon == text.npos ? std::string_view() : text.substr(colon + 1);
  if (text == "cpu") return JobMachine();
  if (kind == "gpu") {
    const auto gpus = colon == text.npos ? std::optional(1) : ParseCount(size);
    if (gpus) return JobMachine{.gpu = true, .per_node = *gpus};
  }
  if (const auto by = size.find('x'); kind == "slurm" && by != size.npos) {
    const auto nodes = ParseCount(size.substr(0, by)), gpus = ParseCount(size.substr(by + 1));
    if (nodes && gpus) return JobMachine{.gpu = true, .slurm = true, .nodes = *nodes, .per_node = *gpus};
  }
  return Fail(Code::kInvalidArgument,
              "--machine: \"{}\" is no machine; write cpu, gpu, gpu:8 (GPUs) or slurm:2x8 (nodes and GPUs of each)",
              text);
}

/// Returns the first line of an object's content. Empty: the object holds token ids.
Result<std::string> FirstLine(const data::DataObject& object, object::Call call) {
  if (object.token_bytes != 0) return std::string();
  if (object.content == nullptr) {
    std::string text(std::min<std::uint64_t>(object.info.size, kMaxOfRecord), '\0');
    MR_TRY(data::ReadRange(object, 0, AsWritableBytes(text), "reading the first record of", call));
    return text.substr(0, text.find('\n'));
  }
  std::optional<std::string> line;
  const Status searched = object.content->FindFrames(
      [&](const data::Frame& frame, std::optional<Buffer> content) -> Status {
        const Buffer text = content ? *std::move(content) : MR_TRY(object.content->ReadFrame(frame, call));
        line = std::string(AsText(text).substr(frame.skip));
        line->resize(std::min(line->find('\n'), line->size()));
        return Fail(Code::kCancelled, "the first record is found");  // ends the search
      },
      call);
  if (line) return *std::move(line);
  if (!searched) return Fail(searched.error());
  return Fail(Code::kNotFound, "{} has no records; check the URL with `millrace ls`", object.url);
}

/// Returns the first record of the data as JSON; null if it holds token ids.
Result<Json> FirstRecord(object::Connection& connection, const std::string& url, object::Call call) {
  const std::array sources = {data::DataSource{.url = url}};
  const data::ResolvedSources found = MR_TRY(data::ResolveSources(connection, sources, call));
  const data::DataObject& first = found.objects.front();
  const std::string line = MR_TRY(FirstLine(first, call));
  if (line.empty()) return Json();
  Json record = MR_TRY(ParseJson(line, "the first record of " + first.url));
  if (!record.is_object())
    return Fail(Code::kInvalidArgument, "the first record of {} is no JSON object; give records in JSON lines",
                first.url);
  return record;
}

bool HasText(const Json& record, std::string_view name) {
  const Json* found = JsonFind(record, name);
  return found != nullptr && found->is_string();
}

bool HasList(const Json& record, std::string_view name) {
  const Json* found = JsonFind(record, name);
  return found != nullptr && found->is_array();
}

/// `chat`: the layout in which the model writes conversations.
Result<RecordForm> FormOf(const Json& record, std::string_view chat) {
  using Lesson = RecordForm::Lesson;
  const std::string layout =
      fmt::format("  layout: {}            # how turns are written: as this family's chat models do\n", chat);
  if (record.is_null()) return RecordForm{Lesson::kTexts, "", "token ids"};
  if (HasList(record, "chosen") && HasList(record, "rejected")) {
    return RecordForm{Lesson::kPreferences, layout, "pairs of conversations"};
  }
  if (HasText(record, "chosen") && HasText(record, "rejected") && HasText(record, "prompt")) {
    return RecordForm{Lesson::kPreferences, "", "prompts with two answers"};
  }
  const std::string answers = "  mode: sft                 # only answers are learnt\n";
  if (HasList(record, "messages") || HasList(record, "conversations") || HasList(record, "prompt")) {
    return RecordForm{Lesson::kAnswers, layout + answers, "conversations"};
  }
  if (HasText(record, "instruction") && HasText(record, "output")) {
    return RecordForm{Lesson::kAnswers, "  layout: alpaca            # instruction, input, output\n" + answers,
                      "instructions"};
  }
  for (const auto& [question, answer] :
       {std::pair("prompt", "completion"), {"prompt", "response"}, {"question", "answer"}}) {
    if (!HasText(record, question) || !HasText(record, answer)) continue;
    return RecordForm{Lesson::kAnswers,
                      fmt::format("  template: \"{{{}}}\\n\"      # the prompt\n  response: \"{{{}}}\"\n{}", question,
                                  answer, answers),
                      "questions with answers"};
  }
  if (HasText(record, "text")) return RecordForm{Lesson::kTexts, "", "texts"};
  for (const auto& [name, value] : record.items()) {
    if (!value.is_string() || name.find_first_of("{}\"\\\n") != name.npos) continue;
    return RecordForm{Lesson::kTexts, fmt::format("  template: \"{{{}}}\"      # the field that is learnt\n", name),
                      "texts"};
  }
  return Fail(Code::kUnsupported, "the first record of the data has no field of text; its fields: {}",
              record.dump().substr(0, 200));
}

/// Returns the config.json of a model.
Result<Json> ConfigOf(const Context& context, object::Connection& connection, const std::string& url) {
  const auto source =
      MR_TRY(checkpoint::ModelSource::Open(connection, url, std::nullopt, context.log(), {.stop = context.stop}));
  const Json* stored = JsonFind(source.reader().manifest().meta, checkpoint::kMetaModelConfig);
  if (stored == nullptr) return Fail(Code::kNotFound, "{} has no config.json; name the folder of a whole model", url);
  return *stored;
}

std::string ChatLayout(const Json& config) {
  constexpr std::int64_t kVocabularyOfLlama2 = 32'064;
  if (config.value("model_type", "") != "llama") return "chatml";
  return config.value("vocab_size", std::int64_t{0}) > kVocabularyOfLlama2 ? "llama3" : "llama2";
}

/// A text as YAML takes it between quotes.
std::string Quoted(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + '"';
}

/// Returns the folder beside the data that may have what a job makes: the data's bucket, or this folder.
Result<std::string> PlaceBeside(const std::string& data) {
  const object::Url url = MR_TRY(object::ParseUrl(data.starts_with('@') ? data.substr(1) : data));
  return url.scheme == object::Url::Scheme::kS3 ? "s3://" + url.bucket : std::string(".");
}

/// The answers, and what was found out about them.
struct JobAnswers {
  InitFlags flags;
  JobMachine machine;
  RecordForm form;
  std::int64_t positions = 0;  ///< most positions of the model; 0: a new one

  bool is_new() const { return flags.model == kNewModel; }
  bool adapts() const { return !is_new() && form.lesson != RecordForm::Lesson::kTexts; }
};

std::string ModelText(const JobAnswers& answers) {
  if (answers.is_new()) {
    return "# A model with random weights. See `model.config` for its sizes.\n"
           "model:\n  family: llama\n"
           "  config: {hidden_size: 256, num_layers: 6, num_heads: 8, intermediate_size: 704}\n";
  }
  std::string text = fmt::format("model: {{from: {}}}\n", Quoted(answers.flags.model));
  if (answers.adapts()) {
    text +=
        "# Adapters are trained in place of the model's weights. `base: nf4` keeps those in 4 bits. To train all "
        "weights,\n"
        "# remove this line, and take a tenth of the learning rate.\n"
        "lora: {r: 16, alpha: 32}\n";
  }
  return text;
}

std::string DataText(const JobAnswers& answers) {
  const std::int64_t wanted = answers.machine.gpu ? 2048 : 512;
  const std::int64_t length = answers.positions > 0 ? std::min(wanted, answers.positions) : wanted;
  std::string text = fmt::format("data:\n  sources: [{{url: {}}}]  # {}\n  tokenizer: {}\n{}  sequence_length: {}\n",
                                 Quoted(answers.flags.data), answers.form.words, Quoted(answers.flags.tokenizer),
                                 answers.form.keys, length);
  if (answers.form.lesson != RecordForm::Lesson::kTexts)
    text += "  best_fit: true            # whole records share a row\n";
  return text + "  # split: {held_out: 0.02}  # keeps a part apart, for `eval: {every_steps: 100}`\n";
}

std::string TrainText(const JobAnswers& answers) {
  constexpr int kSequencesOfStep = 32;
  const int ranks = answers.machine.ranks();
  const int batch = (kSequencesOfStep + ranks - 1) / ranks * ranks;
  using Lesson = RecordForm::Lesson;
  const bool prefers = answers.form.lesson == Lesson::kPreferences;
  const std::string_view rate = prefers            ? "5.0e-6"
                                : answers.adapts() ? "2.0e-4"
                                : answers.is_new() ? "1.0e-3"
                                                   : "5.0e-5";
  std::string text = "train:\n";
  if (prefers) text += "  objective: dpo            # which of two answers is better\n";
  text += fmt::format(
      "  epochs: 1                 # or `steps`\n"
      "  global_batch: {:<10}  # sequences of a step, over all ranks\n"
      "  micro_batch: 1            # sequences at a time on a rank: more are faster, and take more memory\n",
      batch);
  if (answers.machine.gpu) text += "  precision: bf16\n";
  text += fmt::format("  optimizer: {{lr: {}}}\n  schedule: {{name: cosine, warmup_proportion: 0.03}}\n", rate);
  if (answers.machine.gpu) {
    text +=
        "  # parallel: {recompute: full}  # less memory, a third more work; `parallel: auto` lets the planner choose\n";
  }
  return text;
}

std::string RunText(const JobAnswers& answers) {
  const JobMachine& machine = answers.machine;
  std::string text = fmt::format(
      "checkpoint: {{url: {}, every_steps: 100, keep_last: 3}}  # a run that is started again goes on from here\n",
      Quoted(answers.flags.checkpoints));
  if (machine.slurm) {
    text +=
        fmt::format("run: {{launcher: slurm, nodes: {}, processes_per_node: {}}}  # also: partition, account, time\n",
                    machine.nodes, machine.per_node);
  } else {
    text += fmt::format("run: {{processes_per_node: {}}}  # ranks{}\n", machine.per_node,
                        machine.gpu ? ", one for each GPU" : "; each has a part of the cores");
  }
  return text + "log: {every_steps: 10}\n";
}

std::string JobText(const JobAnswers& answers) {
  return fmt::format(
      "# yaml-language-server: $schema=/usr/share/millrace/job.schema.json\n"
      "# Made by `millrace init`. Every key: `millrace job render FILE`, or docs/guide/job-file.md.\n"
      "name: {}\n{}{}{}{}",
      answers.flags.name, ModelText(answers), DataText(answers), TrainText(answers), RunText(answers));
}

/// Asks for what no flag says. Without an answer the `usual` one counts, if there is one.
Status Ask(std::string_view question, std::string_view flag, std::string_view usual, std::string& answer) {
  if (!answer.empty()) return {};
  PrintError("{}{} ", question, usual.empty() ? "" : fmt::format(" [{}]", usual));
  std::getline(std::cin, answer);
  if (answer.empty()) answer = usual;
  if (!answer.empty()) return {};
  return Fail(Code::kInvalidArgument, "no answer; give {}", flag);
}

Status AskAll(InitFlags& flags) {
  MR_TRY(Ask("Which data? A URL: an object, a prefix that ends in /, or a glob:", "--data", "", flags.data));
  MR_TRY(Ask("Which model? A URL, such as hf://Qwen/Qwen3-0.6B/, or new for a small one:", "--model", kNewModel,
             flags.model));
  const bool has_gpu = fs::exists("/dev/nvidia0");
  return Ask("Which machine? cpu, gpu, gpu:8, or slurm:2x8 for two nodes with 8 GPUs each:", "--machine",
             has_gpu ? "gpu" : "cpu", flags.machine);
}

/// Fills in what follows from the answers: name, tokenizer and place of the checkpoints.
Status Complete(InitFlags& flags) {
  if (flags.name.empty()) flags.name = fs::path(flags.file).stem().string();
  const std::string place = MR_TRY(PlaceBeside(flags.data));
  if (flags.checkpoints.empty()) flags.checkpoints = fmt::format("{}/runs/{}", place, flags.name);
  if (!flags.tokenizer.empty()) return {};
  flags.tokenizer = flags.model == kNewModel ? place + "/tokenizer.model" : flags.model;
  return {};
}

Result<JobAnswers> LookUp(const Context& context, InitFlags flags) {
  JobAnswers answers{.machine = MR_TRY(ParseMachine(flags.machine))};
  MR_TRY(Complete(flags));
  const auto connection = MR_TRY(context.Connect());
  std::string layout = "chatml";
  if (flags.model != kNewModel) {
    const Json config = MR_TRY(ConfigOf(context, *connection, flags.model));
    if (config.value("model_type", "") == "bert") {
      return Fail(Code::kUnsupported, "{} is a BERT: begin with examples/recipes/bert-classifier.yaml", flags.model);
    }
    layout = ChatLayout(config);
    answers.positions = config.value("max_position_embeddings", std::int64_t{0});
  }
  answers.form = MR_TRY(FormOf(MR_TRY(FirstRecord(*connection, flags.data, {.stop = context.stop})), layout));
  answers.flags = std::move(flags);
  if (answers.is_new() && answers.form.lesson == RecordForm::Lesson::kPreferences) {
    return Fail(Code::kInvalidArgument,
                "{} has pairs of answers, which a new model cannot learn from: name a model with --model",
                answers.flags.data);
  }
  return answers;
}

/// Says what comes next.
void ShowNextSteps(const JobAnswers& answers) {
  const InitFlags& flags = answers.flags;
  Print("{}: {}, {}, {}\n", flags.file, answers.form.words, flags.model == kNewModel ? "a new model" : flags.model,
        flags.machine);
  if (answers.is_new()) {
    Print(
        "make the tokenizer, if it is not there: millrace tokenizer train --input '{}' --vocab-size 8192 --output {}\n",
        flags.data, flags.tokenizer);
  }
  Print("check it: millrace train {0} --dry-run\nplan it:  millrace job plan {0}\nrun it:   millrace {1} {0}\n",
        flags.file, answers.machine.slurm ? "job submit" : "train");
}

Status Init(const Context& context, InitFlags flags) {
  if (!flags.force && fs::exists(flags.file)) {
    return Fail(Code::kAlreadyExists, "{} is there; give another name, or --force to replace it", flags.file);
  }
  MR_TRY(AskAll(flags));
  const JobAnswers answers = MR_TRY(LookUp(context, std::move(flags)));
  const std::string text = JobText(answers);
  if (context.globals.dry_run) {
    WriteOutput(text);
    return {};
  }
  MR_TRY(WriteFileAtomic(answers.flags.file, AsBytes(text)));
  if (context.globals.json) {
    PrintJsonLine(
        {{"event", "init"}, {"file", answers.flags.file}, {"name", answers.flags.name}, {"data", answers.form.words}});
  } else {
    ShowNextSteps(answers);
  }
  return {};
}

}  // namespace

void AddInitCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<InitFlags>();
  CLI::App* command = AddCommand(
      app, context, "init", "Write a job file from three answers: data, model, machine",
      "  millrace init\n"
      "  millrace init chat.yaml --data 's3://training/chats/*.jsonl' --model hf://Qwen/Qwen3-0.6B/ --machine gpu\n"
      "  millrace init --data s3://training/stories/ --model new --machine cpu --dry-run",
      [&context, flags] {
        const Status made = Init(context, *flags);
        return made ? kExitOk : ReportError(context, made.error());
      });
  command->add_option("file", flags->file, "The job file to write")->capture_default_str();
  command->add_option("--data", flags->data, "URL of the records: an object, a prefix that ends in /, or a glob");
  command->add_option("--model", flags->model, "URL of the model to start from, or \"new\" for a small one");
  command->add_option("--machine", flags->machine, "cpu, gpu, gpu:GPUS, or slurm:NODESxGPUS");
  command->add_option("--tokenizer", flags->tokenizer, "URL of the tokenizer (default: the model's)");
  command
      ->add_option("--checkpoints", flags->checkpoints, "URL for checkpoints (default: runs/NAME in the data's bucket)")
      ->type_name("URL");
  command->add_option("--name", flags->name, "Name of the job (default: the file's)");
  command->add_flag("--force", flags->force, "Replace the file");
}

}  // namespace millrace::cli
