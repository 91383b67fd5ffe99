#include "millrace/base/log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "millrace/base/harmless_text.h"
#include "millrace/base/json.h"
#include "millrace/base/text.h"

namespace millrace {
namespace {

constexpr std::array<std::string_view, 5> kLevels = {"debug", "info", "warning", "error", "off"};

class StderrSink final : public LogSink {
 public:
  void Write(std::string_view line) override {
    // One write(2) a line, so that lines of several threads and processes do not mix.
    std::string text = ::isatty(STDERR_FILENO) == 1 ? HarmlessText(line) : std::string(line);
    text += '\n';
    [[maybe_unused]] ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
  }
};

/// Quotes values with spaces, quotes or control characters, so that a line can be split at spaces.
void AppendValue(std::string& line, const std::string& value) {
  bool plain = !value.empty() && value.find_first_of(" \"=\\") == std::string::npos &&
               std::none_of(value.begin(), value.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  line += plain ? value : DumpJson(value);
}

}  // namespace

Result<LogLevel> ParseLogLevel(std::string_view name) {
  for (std::size_t i = 0; i < kLevels.size(); ++i)
    if (kLevels[i] == name) return static_cast<LogLevel>(i);
  return Fail(Code::kInvalidArgument, "{}", UnknownName("log level", name, kLevels));
}

std::string LogField::FloatingDigits(float v) { return fmt::format("{}", v); }
std::string LogField::FloatingDigits(double v) { return fmt::format("{}", v); }

struct Logger::Rep {
  std::shared_ptr<LogSink> sink;
  LogLevel level;
  Format format;
  Clock* clock;
  std::vector<std::pair<std::string, std::string>> fields;
};

Logger::Logger(std::shared_ptr<LogSink> sink, LogLevel level, Format format, Clock& clock)
    : rep_(std::make_shared<const Rep>(Rep{std::move(sink), level, format, &clock, {}})) {}

Logger Logger::Stderr(LogLevel level, Format format) { return Logger(std::make_shared<StderrSink>(), level, format); }

Logger Logger::With(LogField field) const {
  if (!rep_) return *this;
  Rep copy = *rep_;
  copy.fields.emplace_back(field.key, field.value);
  Logger logger;
  logger.rep_ = std::make_shared<const Rep>(std::move(copy));
  return logger;
}

bool Logger::Enabled(LogLevel level) const { return rep_ && level >= rep_->level && level < LogLevel::kOff; }

void Logger::Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) const {
  if (!Enabled(level)) return;
  std::string time = FormatIso8601(rep_->clock->Wall());
  std::string_view level_name = kLevels[static_cast<std::size_t>(level)];
  if (rep_->format == Format::kJson) {
    Json line = {{"time", time}, {"level", level_name}, {"message", message}};
    for (const auto& [key, value] : rep_->fields) line[key] = value;
    for (const LogField& field : fields) line[std::string(field.key)] = field.value;
    rep_->sink->Write(DumpJson(line));
    return;
  }
  std::string line = fmt::format("{} {} {}", time, level_name, message);
  for (const auto& [key, value] : rep_->fields) {
    line += fmt::format(" {}=", key);
    AppendValue(line, value);
  }
  for (const LogField& field : fields) {
    line += fmt::format(" {}=", field.key);
    AppendValue(line, field.value);
  }
  rep_->sink->Write(line);
}

}  // namespace millrace
