#include "apps/millrace/data/data_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <type_traits>
#include <utility>

#include "apps/common/flag_checks.h"
#include "millrace/base/files/files.h"
#include "millrace/jobs/spec/data_fields.h"
#include "millrace/jobs/spec/spec.h"

namespace millrace::cli {
namespace {

bool IsJobFile(std::string_view name) { return name.ends_with(".yaml") || name.ends_with(".yml"); }

/// The visitor of the keys that are flags, too. `Use` gets each: it adds a flag, or takes the text that was given.
template <class Use>
class FlagVisitor {
 public:
  explicit FlagVisitor(Use& use, std::string_view section = "") : use_(use), section_(section) {}

  void Text(const jobs::Key& key, std::string& value, jobs::TextKind, bool) {
    if (key.name() != "tokenizer") use_.Text(NameOf(key), key, value);  // its help says more
  }
  void Word(const jobs::Key& key, std::string& value, const jobs::Choice& choice) {
    use_.Word(NameOf(key), key, value, choice.supported);
  }
  template <class T>
  void Integer(const jobs::Key& key, T& value, std::int64_t least, std::int64_t most) {
    use_.Number(NameOf(key), key, value, least, most);
  }
  template <class T>
  void OptionalInteger(const jobs::Key& key, std::optional<T>& value, std::int64_t least, std::int64_t most) {
    use_.Number(NameOf(key), key, value, least, most);
  }
  void Number(const jobs::Key& key, double& value, double least, double most) {
    use_.Number(NameOf(key), key, value, least, most);
  }
  void Flag(const jobs::Key& key, bool& value) {
    if (key.name() != "same_by_size") use_.Flag(NameOf(key), key, value);  // it is for runs that resume
  }
  template <class Fields>
  void Section(const jobs::Key& key, Fields fields) {
    if (key.name() != "split" && key.name() != "shuffle") return;  // a job file has the settings of an objective
    FlagVisitor inner(use_, key.name());
    fields(inner);
  }
  template <class Fields>
  void Only(const jobs::Condition& condition, Fields fields) {
    if (Use::kTakesAll || condition.holds) fields(*this);
  }
  // No flags: lists, sizes, and what only a job file has.
  void Sources(const jobs::Key&, std::vector<data::DataSource>&) {}
  void Texts(const jobs::Key&, std::vector<std::string>&) {}
  void Bytes(const jobs::Key&, std::uint64_t&, std::uint64_t) {}

 private:
  /// Returns the flag's name: "held-out", "split-seed".
  std::string NameOf(const jobs::Key& key) const {
    const bool is_unique = section_ != "shuffle" && (section_.empty() || key.name() != "seed");
    std::string name = is_unique ? std::string(key.name()) : fmt::format("{}_{}", section_, key.name());
    std::ranges::replace(name, '_', '-');
    return name;
  }

  Use& use_;
  const std::string_view section_;
};

template <class Use>
void VisitFlags(Use& use, jobs::DataSpec& spec) {
  FlagVisitor visitor(use);
  jobs::VisitObjective(visitor, spec.dataset.objective);
  jobs::VisitData(visitor, spec);
}

/// Adds the flags to a command.
class FlagAdder {
 public:
  static constexpr bool kTakesAll = true;
  FlagAdder(CLI::App& command, DataFlags& flags) : command_(command), flags_(flags) {}

  void Text(const std::string& name, const jobs::Key& key, const std::string& value) {
    Add(name, Help(key, value.empty() ? key.unset() : value));
  }
  void Word(const std::string& name, const jobs::Key& key, const std::string& value,
            std::initializer_list<std::string_view> words) {
    std::vector<std::string> known(words.begin(), words.end());
    const std::string help = Help(key, value);
    for (const std::string_view word : words) {
      if (!word.contains('_')) continue;
      std::ranges::replace(known.emplace_back(word), '_', '-');  // as flags are written
    }
    if (CLI::Option* option = Add(name, help)) option->check(OneOf(std::move(known)));
  }
  template <class T, class Bound>
  void Number(const std::string& name, const jobs::Key& key, const T& value, Bound least, Bound most) {
    std::string plain(key.unset());
    if constexpr (std::is_arithmetic_v<T>) plain = fmt::format("{}", value);
    CLI::Option* const option = Add(name, Help(key, plain));
    if (option == nullptr) return;
    option->type_name(std::is_same_v<Bound, double> ? "FLOAT" : "INT")->check(Between(least, most));
  }
  void Flag(const std::string& name, const jobs::Key& key, const bool&) {
    command_.add_flag_callback("--" + name, [keys = &flags_.keys, name] { (*keys)[name] = "true"; }, Help(key, ""));
  }

 private:
  /// Returns the key's sentence as the help of a flag.
  static std::string Help(const jobs::Key& key, std::string_view value) {
    std::string help(key.sentence());
    std::erase(help, '`');
    if (help.ends_with('.')) help.pop_back();
    return value.empty() ? help : fmt::format("{} (default: {})", help, value);
  }
  /// Returns null if the flag is there: of a key that has several declarations, the first.
  CLI::Option* Add(const std::string& name, std::string help) {
    if (command_.get_option_no_throw("--" + name) != nullptr) return nullptr;
    std::erase(help, '`');
    return command_.add_option_function<std::string>(
        "--" + name, [keys = &flags_.keys, name](const std::string& text) { (*keys)[name] = text; }, std::move(help));
  }

  CLI::App& command_;
  DataFlags& flags_;
};

/// Sets what was given, in the order of the declarations. The texts were checked when they were parsed.
class FlagTaker {
 public:
  static constexpr bool kTakesAll = false;
  explicit FlagTaker(const DataFlags& flags) : flags_(flags) {}

  void Text(const std::string& name, const jobs::Key&, std::string& value) {
    if (const std::string* text = Find(name)) value = Unescape(*text);
  }
  void Word(const std::string& name, const jobs::Key&, std::string& value,
            std::initializer_list<std::string_view> words) {
    const std::string* text = Find(name);
    if (text == nullptr) return;
    value = *text;
    if (std::ranges::find(words, value) == words.end()) std::ranges::replace(value, '-', '_');
  }
  template <class T, class Bound>
  void Number(const std::string& name, const jobs::Key&, T& value, Bound, Bound) {
    const std::string* text = Find(name);
    if (text == nullptr) return;
    Bound number{};
    std::from_chars(text->data(), text->data() + text->size(), number);
    value = static_cast<typename ValueOf<T>::Type>(number);
  }
  void Flag(const std::string& name, const jobs::Key&, bool& value) { value = value || Find(name) != nullptr; }

 private:
  template <class T>
  struct ValueOf {
    using Type = T;
  };
  template <class T>
  struct ValueOf<std::optional<T>> {
    using Type = T;
  };
  const std::string* Find(const std::string& name) const {
    const auto found = flags_.keys.find(name);
    return found == flags_.keys.end() || found->second.empty() ? nullptr : &found->second;
  }

  const DataFlags& flags_;
};

Result<DataRequest> FromJob(const std::string& path, const std::vector<std::string>& set) {
  std::string text = MR_TRY(ReadFile(path));
  jobs::Spec job = MR_TRY(jobs::Spec::Parse(text, path, set));
  DataRequest request{.tokenizer = job.data.tokenizer,
                      .global_batch = job.train.global_batch,
                      .micro_batch = job.train.micro_batch,
                      .ranks = job.run.nodes * job.run.processes_per_node,
                      .steps = job.train.steps,
                      .epochs = job.train.epochs};
  request.options = job.data.dataset;
  // The disk cache is for the run. Commands that inspect the data must not fill it, nor wait for its folder.
  request.options.disk_cache.clear();
  return request;
}

Result<DataRequest> FromUrls(const DataFlags& flags) {
  if (!flags.weights.empty() && flags.weights.size() != flags.inputs.size()) {
    return Fail(Code::kInvalidArgument, "{} sources need as many weights, not {}", flags.inputs.size(),
                flags.weights.size());
  }
  DataRequest request;
  for (std::size_t i = 0; i < flags.inputs.size(); ++i) {
    if (IsJobFile(flags.inputs[i])) {
      return Fail(Code::kInvalidArgument, "{}: give either one job file or the URLs of the data", flags.inputs[i]);
    }
    const double weight = flags.weights.empty() ? 1.0 : flags.weights[i];
    request.options.sources.push_back({flags.inputs[i], weight, flags.format, flags.split});
  }
  return request;
}

}  // namespace

std::string Unescape(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char next = i + 1 < text.size() ? text[i + 1] : '\0';
    bool escape = text[i] == '\\' && (next == 'n' || next == 't' || next == '\\');
    plain += !escape ? text[i] : next == 'n' ? '\n' : next == 't' ? '\t' : '\\';
    i += escape;
  }
  return plain;
}

void AddDataFlags(CLI::App& command, DataFlags& flags) {
  command.add_option("inputs", flags.inputs, "JOB.yaml, or objects, prefixes, globs and @lists of records")->required();
  command.add_option("--set", flags.set, "Change a key of the job file: data.sequence_length=512");
  command.add_option("--weight", flags.weights, "Passes over each source in an epoch, in the order of the sources");
  command.add_option("--format", flags.format,
                     "jsonl, json[:FIELD], objects, lines, text, csv, tsv, tar, arrow, parquet, hdf5 (default: as "
                     "names say); csv and tsv "
                     "may end in +no_header, and tsv in +quotes");
  command.add_option("--split", flags.split,
                     "Split of a Hugging Face data set: train; or write #config:train behind the URL");
  command.add_option("--tokenizer", flags.tokenizer, kTokenizerHelp);
  FlagAdder adder(command, flags);
  jobs::DataSpec defaults;
  VisitFlags(adder, defaults);
}

Result<DataRequest> ResolveDataFlags(const DataFlags& flags) {
  bool job = flags.inputs.size() == 1 && IsJobFile(flags.inputs[0]);
  if (!job && !flags.set.empty()) return Fail(Code::kInvalidArgument, "--set changes a job file, and none is given");
  DataRequest request = job ? MR_TRY(FromJob(flags.inputs[0], flags.set)) : MR_TRY(FromUrls(flags));
  jobs::DataSpec spec{.dataset = std::move(request.options), .tokenizer = {}};
  FlagTaker taker(flags);
  VisitFlags(taker, spec);
  request.options = std::move(spec.dataset);
  if (!flags.tokenizer.empty()) request.tokenizer = flags.tokenizer;
  if (flags.global_batch > 0) request.global_batch = flags.global_batch;
  if (!flags.format.empty() && job) {
    return Fail(Code::kInvalidArgument, "--format is for URLs; a job file's sources have a format each");
  }
  if (!flags.split.empty() && job) {
    return Fail(Code::kInvalidArgument, "--split is for URLs; a job file's sources have a split each");
  }
  return request;
}

}  // namespace millrace::cli
