#include "millrace/eval/documents.h"

#include <algorithm>
#include <array>
#include <utility>

#include "millrace/jinja/python/text.h"

namespace millrace::eval {
namespace {

namespace python = jinja;

constexpr std::array<std::pair<std::string_view, Task>, 5> kTasks = {{{"perplexity", Task::kPerplexity},
                                                                      {"choice", Task::kChoice},
                                                                      {"hellaswag", Task::kHellaSwag},
                                                                      {"mmlu", Task::kMmlu},
                                                                      {"match", Task::kMatch}}};

std::string Stripped(std::string_view text) { return std::string(python::Strip(text, python::Ends::kBoth)); }

Result<std::vector<std::string>> Strings(const Json& document, std::string_view key) {
  const Json* list = JsonFind(document, key);
  if (list == nullptr || !list->is_array() || list->empty()) {
    return Fail(Code::kInvalidArgument, "\"{}\" should be a list of texts", key);
  }
  std::vector<std::string> texts;
  for (const Json& each : *list) {
    if (!each.is_string()) return Fail(Code::kInvalidArgument, "\"{}\" should be a list of texts", key);
    texts.push_back(each.get<std::string>());
  }
  return texts;
}

/// Reads which choice is right: a number, or one that is written as text.
Result<std::size_t> GoldOf(const Json& document, std::string_view key, std::size_t choices) {
  const Json* gold = JsonFind(document, key);
  std::optional<std::size_t> index;
  if (gold != nullptr && gold->is_number_unsigned()) index = gold->get<std::size_t>();
  if (gold != nullptr && gold->is_string()) {
    const auto text = gold->get<std::string>();
    if (text.size() == 1 && text[0] >= '0' && text[0] <= '9') index = static_cast<std::size_t>(text[0] - '0');
    if (text.size() == 1 && text[0] >= 'A' && text[0] <= 'Z') index = static_cast<std::size_t>(text[0] - 'A');
  }
  if (!index || *index >= choices) {
    return Fail(Code::kInvalidArgument, "\"{}\" should be the number of one of the {} choices, from 0", key, choices);
  }
  return *index;
}

/// HellaSwag's texts have marks of WikiHow in brackets.
std::string WithoutMarks(std::string_view text) {
  std::string clean = python::Replace(Stripped(text), " [title]", ". ", -1);
  for (std::size_t begin = 0; (begin = clean.find('[', begin)) != clean.npos;) {
    const std::size_t end = clean.find_first_of("]\n", begin);  // as the pattern \[.*?\]
    if (end == clean.npos || clean[end] == '\n') {
      ++begin;
    } else {
      clean.erase(begin, end + 1 - begin);
    }
  }
  return python::Replace(clean, "  ", " ", -1);
}

Result<Document> ParseJsonDocument(Task task, const Json& json) {
  Document document;
  switch (task) {
    case Task::kPerplexity:
      document.text = MR_TRY(JsonString(json, "text"));
      return document;
    case Task::kChoice:
      document.text = MR_TRY(JsonString(json, "query"));
      document.choices = MR_TRY(Strings(json, "choices"));
      document.gold = MR_TRY(GoldOf(json, "gold", document.choices.size()));
      return document;
    case Task::kHellaSwag: {
      const std::string activity = MR_TRY(JsonString(json, "activity_label"));
      const std::string first = MR_TRY(JsonString(json, "ctx_a"));
      const std::string second = MR_TRY(python::Capitalize(MR_TRY(JsonString(json, "ctx_b"))));
      document.text = WithoutMarks(fmt::format("{}: {} {}", activity, first, second));
      for (const std::string& ending : MR_TRY(Strings(json, "endings"))) {
        document.choices.push_back(WithoutMarks(ending));
      }
      document.gold = MR_TRY(GoldOf(json, "label", document.choices.size()));
      return document;
    }
    case Task::kMmlu: {
      const std::string question = MR_TRY(JsonString(json, "question"));
      const auto options = MR_TRY(Strings(json, "choices"));
      if (options.size() != 4) return Fail(Code::kInvalidArgument, "\"choices\" should have four texts");
      document.choices = {"A", "B", "C", "D"};
      document.text = Stripped(question);
      for (std::size_t i = 0; i < 4; ++i) document.text += fmt::format("\n{}. {}", document.choices[i], options[i]);
      document.text += "\nAnswer:";
      document.gold = MR_TRY(GoldOf(json, "answer", 4));
      document.subject = JsonString(json, "subject").value_or("");
      if (!document.subject.empty()) {
        document.description = fmt::format("The following are multiple choice questions (with answers) about {}.\n\n",
                                           python::Replace(document.subject, "_", " ", -1));
      }
      return document;
    }
    case Task::kMatch: {
      document.text = MR_TRY(JsonString(json, "prompt"));
      const Json* answer = JsonFind(json, "answer");
      if (answer != nullptr && answer->is_string()) {
        document.answers = {answer->get<std::string>()};
      } else {
        document.answers = MR_TRY(Strings(json, "answer"));
      }
      return document;
    }
  }
  return Fail(Code::kInternal, "no such task");
}

/// The document with its answer, as an example before another one.
std::string Answered(const Document& document) {
  const std::string& answer = document.choices.empty() ? document.answers.front() : document.choices[document.gold];
  return fmt::format("{} {}\n\n", document.text, answer);
}

}  // namespace

std::optional<Task> ParseTask(std::string_view name) {
  const auto found = std::ranges::find(kTasks, name, &std::pair<std::string_view, Task>::first);
  return found != kTasks.end() ? std::optional(found->second) : std::nullopt;
}

Result<Document> ParseDocument(Task task, std::string_view line, std::string_view what) {
  const Json json = MR_TRY(ParseJson(line, what));
  auto document = ParseJsonDocument(task, json);
  if (!document) return Fail(document.error().Context(std::string(what)));
  return document;
}

Result<std::vector<Document>> ParseDocuments(Task task, std::string_view lines, std::string_view what,
                                             std::size_t most) {
  std::vector<Document> documents;
  std::size_t number = 0;
  while (!lines.empty() && documents.size() < most) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    const std::string_view line = python::Strip(lines.substr(0, end), python::Ends::kBoth);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    ++number;
    if (line.empty()) continue;
    documents.push_back(MR_TRY(ParseDocument(task, line, fmt::format("{}, line {}", what, number))));
  }
  return documents;
}

Status AddExamples(std::vector<Document>& documents, const std::vector<Document>& examples, std::size_t count) {
  for (Document& document : documents) {
    std::string before = document.description;
    std::size_t found = 0;
    for (const Document& example : examples) {
      if (found == count) break;
      if (example.subject != document.subject) continue;
      before += Answered(example);
      ++found;
    }
    if (found < count) {
      return Fail(Code::kInvalidArgument,
                  "there are {} examples{}, and {} are wanted; lower --shots, or add some to --shots-data", found,
                  document.subject.empty() ? "" : " of the subject " + document.subject, count);
    }
    document.text = before + document.text;
  }
  return {};
}

}  // namespace millrace::eval
