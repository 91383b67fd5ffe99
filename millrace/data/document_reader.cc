#include "millrace/data/document_reader.h"

#include <functional>
#include <utility>

#include "millrace/base/channel.h"
#include "millrace/base/task_scope.h"
#include "millrace/data/formats/decoded_content.h"

namespace millrace::data {

class DocumentReader::Rep {
 public:
  Rep(ResolvedSources sources, const RecordTemplate& record_template, object::Call call)
      : sources_(std::move(sources)), parser_(record_template), deadline_(call.deadline), caller_(call.stop) {
    reading_.Spawn("documents", [this](std::stop_token stop) {
      Status read = ReadAll(std::move(stop));
      if (!read) pieces_.Push(std::unexpected(read.error()), reading_.stop_token());
      pieces_.Close();
    });
  }

  Result<bool> Next(std::string& document) {
    while (true) {
      while (at_ < piece_.content.size()) {
        auto parsed = parser_.Parse(NextLine());
        if (parsed) {
          document = *parsed;
          ++documents_;
          return true;
        }
        broken_ += blank_ ? 0 : 1;
      }
      auto piece = pieces_.Pop();
      if (!piece) return failed_ ? Result<bool>(std::unexpected(*failed_)) : false;
      if (!*piece) return std::unexpected(*(failed_ = piece->error()));
      piece_ = **std::move(piece);
      bytes_ += piece_.object_bytes;
      at_ = 0;
    }
  }

  std::uint64_t documents() const { return documents_; }
  std::uint64_t broken() const { return broken_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  /// A frame's content; or nothing of an object that ended, and its size.
  struct Piece {
    Buffer content;
    std::uint64_t object_bytes = 0;
  };

  std::string_view NextLine() {
    std::string_view rest = AsText(piece_.content).substr(at_);
    std::string_view line = rest.substr(0, rest.find('\n'));
    at_ += line.size() + 1;
    blank_ = IsBlank(line);
    return line;
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

  Status Push(Piece piece, const object::Call& call) {
    if (pieces_.Push(std::move(piece), call.stop)) return {};
    return Fail(Code::kCancelled, "interrupted");
  }

  const ResolvedSources sources_;
  RecordParser parser_;
  const Deadline deadline_;
  const std::stop_token caller_;
  Piece piece_;
  std::size_t at_ = 0;  ///< in the piece
  bool blank_ = false;  ///< the last line was
  std::optional<Error> failed_;
  std::uint64_t documents_ = 0, broken_ = 0, bytes_ = 0;
  Channel<Result<Piece>> pieces_{2};
  TaskScope reading_;
};

DocumentReader::DocumentReader(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
DocumentReader::DocumentReader(DocumentReader&&) noexcept = default;
DocumentReader& DocumentReader::operator=(DocumentReader&&) noexcept = default;
DocumentReader::~DocumentReader() = default;

Result<DocumentReader> DocumentReader::Open(object::Connection& connection, std::span<const Source> sources,
                                            const RecordTemplate& record_template, object::Call call) {
  ResolvedSources resolved = MR_TRY(ResolveSources(connection, sources, call, record_template.fields()));
  for (const DataObject& object : resolved.objects) {
    if (object.token_bytes > 0) return Fail(Code::kInvalidArgument, "{}: token ids hold no text", object.url);
  }
  return DocumentReader(std::make_unique<Rep>(std::move(resolved), record_template, std::move(call)));
}

Result<bool> DocumentReader::Next(std::string& document) { return rep_->Next(document); }
std::uint64_t DocumentReader::documents() const { return rep_->documents(); }
std::uint64_t DocumentReader::broken() const { return rep_->broken(); }
std::uint64_t DocumentReader::bytes() const { return rep_->bytes(); }

}  // namespace millrace::data
