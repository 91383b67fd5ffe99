#include "millrace/data/documents/document_reader.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "millrace/base/threads/channel.h"
#include "millrace/base/threads/task_scope.h"
#include "millrace/data/documents/field_mismatch.h"
#include "millrace/data/formats/decoded_content.h"

namespace millrace::data {

class DocumentReader::Rep {
 public:
  Rep(ResolvedSources sources, const RecordTemplate& record_template, object::Call call)
      : sources_(std::move(sources)),
        form_(DocumentForm::OfTemplate(record_template)),
        parser_(record_template),
        deadline_(call.deadline),
        caller_(call.stop) {
    working_.Spawn("documents-read", [this](std::stop_token stop) {
      Status read = ReadAll(stop);
      if (!read) contents_.Push(std::unexpected(read.error()), stop);
      contents_.Close();
    });
    working_.Spawn("documents-parse", [this](std::stop_token stop) {
      while (auto content = contents_.Pop(stop)) {
        if (!pages_.Push(
                content->has_value() ? Result<DocumentPage>(Parse(**content)) : std::unexpected(content->error()),
                stop))
          break;
      }
      pages_.Close();
    });
  }

  bool Ready() const { return at_ < page_.documents.size(); }

  Result<std::span<const std::string_view>> Next(std::size_t count) {
    while (!Ready()) {
      auto page = pages_.Pop();
      if (!page) return failed_ ? Fail(*failed_) : Result<std::span<const std::string_view>>();
      if (!*page) return Fail(*(failed_ = page->error()));
      page_ = **std::move(page);
      at_ = 0;
      bytes_ += page_.object_bytes;
      broken_ += page_.broken;
    }
    auto some = std::span(page_.documents).subspan(at_).first(std::min(count, page_.documents.size() - at_));
    at_ += some.size();
    documents_ += some.size();
    return some;
  }

  std::uint64_t documents() const { return documents_; }
  std::uint64_t broken() const { return broken_; }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t all_bytes() const {
    std::uint64_t sum = 0;
    for (const DataObject& object : sources_.objects) sum += object.info.size;
    return sum;
  }

  Result<std::string> DescribeMismatch() const {
    if (documents_ > 0) return "";
    for (const DataObject& object : sources_.objects) {
      const auto found = MR_TRY(FindFieldMismatch(object, form_, {.stop = caller_, .deadline = deadline_}));
      if (found) return found->ToString();
    }
    return "";
  }

 private:
  /// The content of a frame. At the end of an object: no content, and the size of the object.
  struct FrameContent {
    Buffer content;
    std::uint64_t object_bytes = 0;
  };

  /// The documents of a frame, as views of `text`.
  struct DocumentPage {
    Buffer text;
    std::vector<std::string_view> documents;
    std::uint64_t broken = 0, object_bytes = 0;
  };

  DocumentPage Parse(const FrameContent& content) {
    DocumentPage page{.object_bytes = content.object_bytes};
    std::vector<std::size_t> ends;
    std::string text;
    text.reserve(content.content.size());
    std::string_view rest = AsText(content.content);
    while (!rest.empty()) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(line.size() + 1, rest.size()));
      if (auto parsed = parser_.Parse(line)) {
        text += *parsed;
        ends.push_back(text.size());
      } else {
        page.broken += IsBlank(line) ? 0 : 1;
      }
    }
    // The views must stay valid when the page is moved. A moved Buffer keeps its memory, a short string does not.
    page.text = Buffer(text.size());
    std::ranges::copy(AsBytes(text), page.text.data());
    std::size_t begin = 0;
    for (std::size_t end : ends) {
      page.documents.push_back(AsText(page.text).substr(begin, end - begin));
      begin = end;
    }
    return page;
  }

  Status ReadAll(std::stop_token stop) {
    std::stop_source cancel;
    std::stop_callback of_owner(stop, [&] { cancel.request_stop(); });
    std::stop_callback of_caller(caller_, [&] { cancel.request_stop(); });
    const object::Call call{.stop = cancel.get_token(), .deadline = deadline_};
    for (const DataObject& object : sources_.objects) {
      auto content = object.content ? object.content : MakeDecodedContent(object, {});
      auto found = [&](const Frame& frame, std::optional<Buffer> bytes) -> Status {
        if (!bytes) bytes = MR_TRY(content->ReadFrame(frame, call));
        return Push({.content = *std::move(bytes)}, call);
      };
      MR_TRY(content->FindFrames(found, call));
      MR_TRY(Push({.object_bytes = object.info.size}, call));
    }
    return {};
  }

  Status Push(FrameContent content, const object::Call& call) {
    if (contents_.Push(std::move(content), call.stop)) return {};
    return Fail(Code::kCancelled, "interrupted");
  }

  const ResolvedSources sources_;
  const DocumentForm form_;  ///< of the template
  RecordParser parser_;
  const Deadline deadline_;
  const std::stop_token caller_;
  DocumentPage page_;
  std::size_t at_ = 0;  ///< in the page
  std::optional<Error> failed_;
  std::uint64_t documents_ = 0, broken_ = 0, bytes_ = 0;
  Channel<Result<FrameContent>> contents_{2};
  Channel<Result<DocumentPage>> pages_{2};
  TaskScope working_;
};

DocumentReader::DocumentReader(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
DocumentReader::DocumentReader(DocumentReader&&) noexcept = default;
DocumentReader& DocumentReader::operator=(DocumentReader&&) noexcept = default;
DocumentReader::~DocumentReader() = default;

Result<DocumentReader> DocumentReader::Open(object::Connection& connection, std::span<const DataSource> sources,
                                            const RecordTemplate& record_template, object::Call call) {
  ResolvedSources resolved = MR_TRY(ResolveSources(connection, sources, call, record_template.fields()));
  for (const DataObject& object : resolved.objects) {
    const bool samples = object.content && object.content->holds_samples();
    if (object.token_bytes > 0 || samples) {
      return Fail(Code::kInvalidArgument, "{}: {} hold no text; name sources that have text", object.url,
                  samples ? "stored samples" : "token ids");
    }
  }
  return DocumentReader(std::make_unique<Rep>(std::move(resolved), record_template, std::move(call)));
}

Result<bool> DocumentReader::Next(std::string& document) {
  auto some = MR_TRY(rep_->Next(1));
  if (some.empty()) return false;
  document = some[0];
  return true;
}
Result<std::span<const std::string_view>> DocumentReader::NextSome(std::size_t count) { return rep_->Next(count); }
bool DocumentReader::ready() const { return rep_->Ready(); }
std::uint64_t DocumentReader::documents() const { return rep_->documents(); }
std::uint64_t DocumentReader::broken() const { return rep_->broken(); }
std::uint64_t DocumentReader::bytes() const { return rep_->bytes(); }
std::uint64_t DocumentReader::all_bytes() const { return rep_->all_bytes(); }
Result<std::string> DocumentReader::DescribeMismatch() const { return rep_->DescribeMismatch(); }

}  // namespace millrace::data
