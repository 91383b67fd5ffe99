// Records what the threads of a process do when, as spans of time for a trace.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/json.h"
#include "millrace/base/threads/sync.h"

namespace millrace::trace {

/// The category of a span. Viewers show and filter categories by their names.
enum class Category : std::uint8_t { kStep, kPass, kModel, kKernel, kOptimizer, kCommunication, kData, kCheckpoint };
/// "step", "pass", "model", "kernel", "optimizer", "communication", "data", "checkpoint"
std::string_view CategoryName(Category category);

/// One span of a thread.
struct TraceEvent {
  std::string name;
  Category category = Category::kStep;
  int thread = 0;  ///< index into Recorder::threads()
  TimePoint begin, end;
  Json arguments;  ///< an object, or null
};

/// Keeps the spans of one rank while it is on. Thread-safe.
class Recorder {
 public:
  /// The most events, of some 100 bytes each. Beyond them, spans are counted and dropped.
  static constexpr std::size_t kMaxEvents = 1'000'000;

  /// REQUIRES: `clock` outlives the recorder.
  explicit Recorder(const Clock& clock, std::size_t most_events = kMaxEvents)
      : clock_(clock), most_events_(most_events) {}
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  void SetOn(bool on) { on_.store(on, std::memory_order_relaxed); }
  bool is_on() const { return on_.load(std::memory_order_relaxed); }
  TimePoint Now() const { return clock_.Now(); }

  /// Adds a span of the calling thread. Does nothing while the recorder is off.
  void Add(std::string name, Category category, TimePoint begin, TimePoint end, Json arguments = nullptr);
  /// Names the calling thread. Without a name, the system's name of the thread is shown.
  void NameThread(std::string name);

  std::vector<TraceEvent> events() const;
  /// Returns the names of the threads, in the order of their first spans.
  std::vector<std::string> threads() const;
  std::uint64_t dropped() const;

 private:
  int ThreadIndex() MR_REQUIRES(mutex_);

  const Clock& clock_;
  const std::size_t most_events_;
  std::atomic<bool> on_ = false;

  mutable Mutex mutex_;
  std::vector<TraceEvent> events_ MR_GUARDED_BY(mutex_);
  std::vector<std::string> threads_ MR_GUARDED_BY(mutex_);
  std::map<long, int> thread_index_ MR_GUARDED_BY(mutex_);  ///< by the system's number of the thread
  std::uint64_t dropped_ MR_GUARDED_BY(mutex_) = 0;
};

/// A scope in which spans of this thread go to `recorder`, which may be null. Scopes may be nested; the innermost
/// counts.
class ThreadScope {
 public:
  explicit ThreadScope(Recorder* recorder) : outer_(current_) { current_ = recorder; }
  ~ThreadScope() { current_ = outer_; }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  friend Recorder* CurrentRecorder();
  static thread_local constinit Recorder* current_;
  Recorder* const outer_;
};

/// Returns where spans of this thread go if they are recorded now; otherwise null.
inline Recorder* CurrentRecorder() {
  Recorder* const recorder = ThreadScope::current_;
  return recorder != nullptr && recorder->is_on() ? recorder : nullptr;
}

/// A span from its construction to its destruction. Without a recorder it costs a look at a thread-local variable.
class Span {
 public:
  /// `name` outlives the span. `recorder`: null: not recorded.
  Span(const char* name, Category category, Recorder* recorder = CurrentRecorder())
      : recorder_(recorder), name_(name), category_(category) {
    if (recorder_ != nullptr) begin_ = recorder_->Now();
  }
  ~Span() {
    if (recorder_ != nullptr) recorder_->Add(name_, category_, begin_, recorder_->Now(), std::move(arguments_));
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  /// Returns whether the span is recorded. Only then are arguments worth making.
  explicit operator bool() const { return recorder_ != nullptr; }
  /// `arguments` is a JSON object that viewers show with the span.
  void SetArguments(Json arguments) { arguments_ = std::move(arguments); }

 private:
  Recorder* const recorder_;
  const char* const name_;
  const Category category_;
  TimePoint begin_;
  Json arguments_;
};

}  // namespace millrace::trace
