// Runs a few actors one store call at a time, in every order: an explicit-state model checker over the real code.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#include "millrace/object/blocking.h"
#include "millrace/object/support/read_only_store.h"

namespace millrace::checkpoint::testing {

/// The choices of one execution, and the next execution in depth-first order.
class ChoiceTree {
 public:
  /// Returns a number below `options`.
  int Choose(int options) {
    if (at_ == path_.size()) path_.push_back({0, options});
    return path_[at_++].chosen;
  }
  /// Moves to the next execution. Returns false after the last one.
  bool Advance() {
    at_ = 0;
    while (!path_.empty() && path_.back().chosen + 1 == path_.back().options) path_.pop_back();
    if (path_.empty()) return false;
    ++path_.back().chosen;
    return true;
  }

 private:
  struct Choice {
    int chosen, options;
  };
  std::vector<Choice> path_;
  std::size_t at_ = 0;
};

/// The bounds of a search.
struct SearchBounds {
  int switches = 2;  ///< times that an actor is stopped, at a call, for another one; it then pauses as long as it takes
  int faults = 1;    ///< writes whose answer is lost, or that are lost themselves
};

/// Lets one actor run at a time, each on a stack of its own of one thread. An actor may be stopped before each of its
/// calls to the store.
class Interleaver {
 public:
  Interleaver(ChoiceTree& choices, SearchBounds bounds) : choices_(choices), left_(bounds) {}

  /// Runs the actors to their ends. Without switches they run one after the other, beginning with any.
  void Run(std::vector<std::function<void()>> bodies) {
    for (std::function<void()>& body : bodies) {
      auto actor = std::make_unique<Actor>();
      actor->body = std::move(body);
      actor->stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
      getcontext(&actor->fiber.context);
      actor->fiber.context.uc_stack.ss_sp = actor->stack.get();
      actor->fiber.context.uc_stack.ss_size = kStackBytes;
      actor->fiber.bottom = actor->stack.get();
      actor->fiber.bytes = kStackBytes;
      makecontext(&actor->fiber.context, &Interleaver::Enter, 0);
      actor->fiber.Prepare();
      actors_.push_back(std::move(actor));
    }
    main_.PrepareMain();
    running_ = this;
    HandOn(-1, /*must=*/true);
    for (auto& actor : actors_) actor->fiber.Destroy();
  }
  /// Call it before each request to the store, in an actor. Other actors may run meanwhile.
  void Point() { HandOn(current_, /*must=*/false); }
  /// Returns what becomes of a write: 0: it is answered; 1: its answer is lost; 2: it is lost itself.
  int ChooseFault() {
    if (left_.faults == 0) return 0;
    const int fault = choices_.Choose(3);
    if (fault != 0) --left_.faults;
    return fault;
  }
  int current() const { return current_; }  ///< the actor that runs

 private:
  static constexpr std::size_t kStackBytes = 1 * kMiB;
  /// A stack of this thread. Tells sanitizers when another one is used.
  struct Fiber {
    ucontext_t context{};
    const void* bottom = nullptr;
    std::size_t bytes = 0;
#if defined(__SANITIZE_THREAD__)
    void* tsan = nullptr;
    void Prepare() { tsan = __tsan_create_fiber(0); }
    void PrepareMain() { tsan = __tsan_get_current_fiber(); }
    void Destroy() { __tsan_destroy_fiber(tsan); }
#else
    void Prepare() {}
    void PrepareMain() {}
    void Destroy() {}
#endif
    void SwitchTo(Fiber& next) {
#if defined(__SANITIZE_ADDRESS__)
      void* fake_stack = nullptr;
      __sanitizer_start_switch_fiber(&fake_stack, next.bottom, next.bytes);
#elif defined(__SANITIZE_THREAD__)
      __tsan_switch_to_fiber(next.tsan, 0);
#endif
      swapcontext(&context, &next.context);
#if defined(__SANITIZE_ADDRESS__)
      __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
    }
  };
  struct Actor {
    Fiber fiber;
    std::unique_ptr<std::byte[]> stack;
    std::function<void()> body;
    bool is_done = false;
  };

  /// The first function of an actor's stack.
  static void Enter() {
    Interleaver& self = *running_;
#if defined(__SANITIZE_ADDRESS__)
    const void* bottom = nullptr;
    std::size_t bytes = 0;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    if (self.main_.bottom == nullptr) {
      self.main_.bottom = bottom;
      self.main_.bytes = bytes;
    }
#endif
    const int me = self.current_;
    Actor& actor = *self.actors_[static_cast<std::size_t>(me)];
    actor.body();
    actor.is_done = true;
    self.HandOn(me, /*must=*/true);
  }

  void HandOn(int from, bool must) {
    Fiber& mine = from < 0 ? main_ : actors_[static_cast<std::size_t>(from)]->fiber;
    std::vector<int> next;
    if (!must) next.push_back(from);
    for (int i = 0; i < static_cast<int>(actors_.size()); ++i)
      if (i != from && !actors_[static_cast<std::size_t>(i)]->is_done) next.push_back(i);
    if (next.empty()) return mine.SwitchTo(main_);
    if (!must && (left_.switches == 0 || next.size() == 1)) return;
    const int chosen = next[static_cast<std::size_t>(choices_.Choose(static_cast<int>(next.size())))];
    if (chosen == from) return;
    if (!must) --left_.switches;
    current_ = chosen;
    next = {};  // an actor that has ended does not come back to free it
    mine.SwitchTo(actors_[static_cast<std::size_t>(chosen)]->fiber);
    current_ = from;
  }

  static inline thread_local Interleaver* running_ = nullptr;
  ChoiceTree& choices_;
  SearchBounds left_;
  std::vector<std::unique_ptr<Actor>> actors_;
  Fiber main_;
  int current_ = -1;
};

/// A store whose calls are the points at which actors are stopped. `inner` answers at once.
class InterleavedStore : public object::ReadOnlyStore {
 public:
  InterleavedStore(std::shared_ptr<object::Store> inner, Interleaver& interleaver)
      : inner_(std::move(inner)), interleaver_(interleaver) {}

  std::string Describe() const override { return inner_->Describe(); }
  std::string Identity() const override { return inner_->Identity(); }
  void Head(std::string key, object::Call call, object::Done<std::optional<object::ObjectInfo>> done) override {
    interleaver_.Point();
    inner_->Head(std::move(key), std::move(call), std::move(done));
  }
  void Get(std::string key, object::GetOptions options, MutableByteSpan into, object::Call call,
           object::Done<std::optional<object::GetResult>> done) override {
    interleaver_.Point();
    inner_->Get(std::move(key), std::move(options), into, std::move(call), std::move(done));
  }
  void List(object::ListRequest request, object::Call call, object::Done<object::ListPage> done) override {
    interleaver_.Point();
    auto page = object::List(*inner_, request, std::move(call));
    if (page) ChangeListing(request, *page);
    done(std::move(page));
  }
  Result<std::string> Presign(std::string_view, std::string_view key, Duration) override {
    return Fail(WriteRefusal(std::string(key)));
  }
  void ListUploads(std::string, object::Call, object::Done<std::vector<object::UploadInfo>> done) override {
    done(std::vector<object::UploadInfo>());  // the actors make none
  }
  void Put(std::string key, object::Payload body, object::PutOptions options, object::Call call,
           object::Done<object::PutResult> done) override {
    interleaver_.Point();
    std::string content(AsText(ByteSpan(body)));
    ChangePut(key, content, options);
    const int fault = interleaver_.ChooseFault();
    if (fault == 2) return done(Fail(Code::kUnavailable, "the request was lost"));
    auto put = object::Put(*inner_, key, AsBytes(content), options, std::move(call));
    if (put) AfterPut(key, content, put->etag);
    if (fault == 1 && put) return done(Fail(Code::kDeadlineExceeded, "the answer was lost"));
    done(std::move(put));
  }
  void Delete(std::string key, object::Call call, object::Done<void> done) override {
    interleaver_.Point();
    done(object::Delete(*inner_, std::move(key), std::move(call)));
    AfterDelete();
  }
  void DeleteMany(std::vector<std::string> keys, object::Call call,
                  object::Done<std::vector<object::DeleteFailure>> done) override {
    interleaver_.Point();
    done(object::DeleteMany(*inner_, std::move(keys), std::move(call)));
    AfterDelete();
  }

 protected:
  /// Hooks of mutations, which change requests and answers, and of the checker, which sees them.
  virtual void ChangeListing(const object::ListRequest&, object::ListPage&) {}
  virtual void ChangePut(const std::string&, std::string&, object::PutOptions&) {}
  virtual void AfterPut(const std::string&, const std::string&, const std::string&) {}
  virtual void AfterDelete() {}
  Error WriteRefusal(const std::string& key) const override {
    return Error(Code::kUnsupported, "the actors do not write so: " + key);
  }
  int actor() const { return interleaver_.current(); }

  const std::shared_ptr<object::Store> inner_;

 private:
  Interleaver& interleaver_;
};

}  // namespace millrace::checkpoint::testing
