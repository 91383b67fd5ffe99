// Structured logs: a level, a sentence and key=value fields, one line each.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"

namespace millrace {

enum class LogLevel { kDebug, kInfo, kWarning, kError, kOff };
Result<LogLevel> ParseLogLevel(std::string_view name);

/// One `key=value` of a log line. Numbers and strings convert; never put a secret in one.
struct LogField {
  std::string_view key;
  std::string value;
  LogField(std::string_view k, std::string_view v) : key(k), value(v) {}
  LogField(std::string_view k, const std::string& v) : key(k), value(v) {}
  LogField(std::string_view k, const char* v) : key(k), value(v) {}
  LogField(std::string_view k, bool v) : key(k), value(v ? "true" : "false") {}
  LogField(std::string_view k, const Error& error) : key(k), value(error.ToString()) {}
  template <class T>
    requires std::is_arithmetic_v<T>
  LogField(std::string_view k, T v) : key(k), value(fmt::format("{}", v)) {}
};

/// Where lines go. Implementations are thread-safe and do not fail.
class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual void Write(std::string_view line) = 0;  ///< without the newline
};

/// A cheap handle to a sink; copy it freely into options. The default one discards everything. Any thread may use it.
class Logger {
 public:
  Logger() = default;
  enum class Format { kText, kJson };
  Logger(std::shared_ptr<LogSink> sink, LogLevel level, Format format = Format::kText, Clock& clock = SystemClock());
  /// Lines on standard error.
  static Logger Stderr(LogLevel level, Format format = Format::kText);

  /// The same sink; every line carries the field too (rank=3, component=mount).
  Logger With(LogField field) const;
  bool Enabled(LogLevel level) const;
  void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {}) const;

  void Debug(std::string_view message, std::initializer_list<LogField> fields = {}) const {
    Log(LogLevel::kDebug, message, fields);
  }
  void Info(std::string_view message, std::initializer_list<LogField> fields = {}) const {
    Log(LogLevel::kInfo, message, fields);
  }
  void Warning(std::string_view message, std::initializer_list<LogField> fields = {}) const {
    Log(LogLevel::kWarning, message, fields);
  }
  void Error(std::string_view message, std::initializer_list<LogField> fields = {}) const {
    Log(LogLevel::kError, message, fields);
  }

 private:
  struct Rep;
  std::shared_ptr<const Rep> rep_;
};

}  // namespace millrace
