// Structured logs. Each line has a level, a sentence and key=value fields.
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

/// Receives finished lines. Implementations are thread-safe and do not fail. Tests collect lines with one of their own.
class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual void Write(std::string_view line) = 0;  ///< without the newline
};

/// A handle to a sink. Cheap to copy. A default-constructed Logger discards every line. Thread-safe.
class Logger {
 public:
  Logger() = default;
  enum class Format { kText, kJson };
  Logger(std::shared_ptr<LogSink> sink, LogLevel level, Format format = Format::kText, Clock& clock = SystemClock());
  /// Returns a logger that writes to standard error.
  static Logger Stderr(LogLevel level, Format format = Format::kText);

  /// Returns a logger with the same sink that adds `field` to every line (rank=3, component=mount).
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
