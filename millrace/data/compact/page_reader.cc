#include "millrace/data/compact/page_reader.h"

#include <utility>

#include "millrace/data/formats/decoded_content.h"

namespace millrace::data {
namespace {

constexpr int kReaders = 8;  ///< a guess: small objects are read at the rate of 8 / latency

}  // namespace

PageReader::PageReader(std::span<const DataObject> objects, int threads, std::function<RecordJudge()> make_judge,
                       object::Call call)
    : objects_(objects),
      read_ahead_(static_cast<std::size_t>(threads) + 1),
      call_(std::move(call)),
      unjudged_(static_cast<std::size_t>(threads)) {
  for (int i = 0; i < threads; ++i) {
    // Judges do not stop before the readers: a page that is handed over is judged.
    judging_.Spawn("compact-judge", [this, make_judge](std::stop_token) {
      RecordJudge judge = make_judge();
      while (auto page = unjudged_.Pop()) {
        (*page)->judged = judge.JudgeLines(AsText((*page)->lines));
        (*page)->is_judged.count_down();
      }
    });
  }
  for (int i = 0; i < kReaders && static_cast<std::size_t>(i) < objects.size(); ++i) {
    reading_.Spawn("compact-read", [this](std::stop_token) { ReadObjects(cancel_.get_token()); });
  }
}

PageReader::~PageReader() {
  cancel_.request_stop();
  reading_.Join();
  unjudged_.Close();
  judging_.Join();
}

void PageReader::ReadObjects(std::stop_token stop) {
  std::stop_source either;
  std::stop_callback of_owner(std::move(stop), [&] { either.request_stop(); });
  std::stop_callback of_caller(call_.stop, [&] { either.request_stop(); });
  const object::Call call{.stop = either.get_token(), .deadline = call_.deadline};
  while (!call.stop.stop_requested()) {
    const std::uint32_t object = next_object_.fetch_add(1);
    if (object >= objects_.size()) return;
    Finish(object, ReadObject(object, call));
  }
}

Status PageReader::ReadObject(std::uint32_t at, const object::Call& call) {
  const DataObject& object = objects_[at];
  const auto content = object.content ? object.content : MakeDecodedContent(object, {});
  auto found = [&](const Frame& frame, std::optional<Buffer> bytes) -> Status {
    if (!bytes) bytes = MR_TRY(content->ReadFrame(frame, call));
    auto page = std::make_shared<RecordPage>();
    page->object = at;
    page->object_end = frame.offset + frame.bytes;
    page->lines = *std::move(bytes);
    if (unjudged_.Push(page, call.stop) && HandOver(page, call.stop)) return {};
    return Fail(Code::kCancelled, "interrupted");
  };
  return content->FindFrames(found, call);
}

bool PageReader::HandOver(std::shared_ptr<RecordPage> page, std::stop_token stop) {
  MutexLock lock(mutex_);
  ObjectPages& object = ahead_[page->object];
  changed_.Wait(mutex_, stop, [&]() MR_NO_THREAD_SAFETY_ANALYSIS {
    return object.pages.size() < (page->object == current_ ? read_ahead_ : 1);
  });
  if (stop.stop_requested()) return false;
  object.pages.push_back(std::move(page));
  changed_.NotifyAll();
  return true;
}

void PageReader::Finish(std::uint32_t object, Status status) {
  MutexLock lock(mutex_);
  ahead_[object].finished = std::move(status);
  changed_.NotifyAll();
}

Result<std::shared_ptr<RecordPage>> PageReader::Next() {
  std::shared_ptr<RecordPage> page;
  {
    MutexLock lock(mutex_);
    while (!page && current_ < objects_.size()) {
      ObjectPages& object = ahead_[current_];
      changed_.Wait(mutex_, call_.stop, [&]() MR_NO_THREAD_SAFETY_ANALYSIS {
        return !object.pages.empty() || object.finished.has_value();
      });
      if (call_.stop.stop_requested()) return Fail(Code::kCancelled, "interrupted");
      if (!object.pages.empty()) {
        page = std::move(object.pages.front());
        object.pages.erase(object.pages.begin());
      } else if (!*object.finished) {
        return Fail(object.finished->error());
      } else {
        ahead_.erase(current_++);
      }
      changed_.NotifyAll();
    }
  }
  if (page) page->is_judged.wait();
  return page;
}

}  // namespace millrace::data
