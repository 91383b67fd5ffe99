// cat, pipe.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "apps/millrace/objects/metadata_check.h"
#include "apps/millrace/objects/object_commands.h"
#include "millrace/base/files/files.h"
#include "millrace/base/text.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/object/blocking.h"
#include "millrace/transfer/copy/verify.h"
#include "millrace/transfer/stream/multipart_writer.h"
#include "millrace/transfer/stream/ranged_reader.h"

namespace millrace::cli {
namespace {

Status WriteBytesOut(ByteSpan bytes) {
  while (!bytes.empty()) {
    ssize_t n = write(STDOUT_FILENO, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EPIPE) ExitOnBrokenPipe();
    if (n < 0) return Fail(ErrnoError(errno, "writing to standard output"));
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
  return {};
}

/// Standard input. Reads end with kCancelled when the stop token fires.
class Input {
 public:
  explicit Input(std::stop_token stop)
      : wake_(eventfd(0, EFD_CLOEXEC)), on_stop_(std::move(stop), [this] { eventfd_write(wake_.get(), 1); }) {}

  /// Returns the number of bytes read; 0 at the end of input.
  Result<std::size_t> Read(MutableByteSpan into) {
    for (;;) {
      pollfd fds[] = {{STDIN_FILENO, POLLIN, 0}, {wake_.get(), POLLIN, 0}};
      if (poll(fds, 2, -1) < 0 && errno != EINTR) return Fail(ErrnoError(errno, "waiting for standard input"));
      if (fds[1].revents) return Fail(Code::kCancelled, "interrupted");
      if (!fds[0].revents) continue;
      ssize_t n = read(STDIN_FILENO, into.data(), into.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return Fail(ErrnoError(errno, "reading standard input"));
      return static_cast<std::size_t>(n);
    }
  }

 private:
  UniqueFd wake_;
  std::stop_callback<std::function<void()>> on_stop_;
};

/// Writes an object to standard output. The bytes are compared with the checksum of the whole when all are written: a
/// reader of the output then learns of damage by the status.
Status CatObject(object::ReadStore& store, const object::ObjectInfo& info, MemoryBudget& budget,
                 const object::Call& call) {
  transfer::RangedReader reader(store, budget, info, {});
  const object::Checksum whole = info.checksum.parts > 0 ? object::Checksum() : info.checksum;
  transfer::Digester digester(whole.algorithm, info.size);
  for (;;) {
    const ByteSpan piece = MR_TRY(reader.Next(call));
    if (piece.empty()) break;
    digester.Update(piece);
    MR_TRY(WriteBytesOut(piece));
  }
  if (whole.algorithm == object::Checksum::Algorithm::kNone || digester.Finish() == whole.value) return {};
  return Fail(transfer::Mismatch(info.key, whole));
}

}  // namespace

Result<int> CatObjects(const Context& context, object::Connection& connection, const std::vector<std::string>& urls,
                       const SelectFlags& flags) {
  MemoryBudget budget(context.DataBudget());
  object::Call call{.stop = context.stop};
  for (const std::string& url : urls) {
    Selection selection = MR_TRY(Select(connection, url, flags));
    MR_TRY(ForEach(
        selection, call,
        [](const std::string& path, const Error& error) {
          PrintError("millrace: cat /{}: {}\n", path, error.ToString());
        },
        [&](transfer::Item item) -> Status { return CatObject(*selection.place.store, item.info, budget, call); }));
  }
  return kExitOk;
}

Result<int> WriteStream(const Context& context, object::Connection& connection, const std::string& url,
                        const WriteFlags& flags, bool no_clobber) {
  MR_TRY(flags.Check());
  ObjectPlace place = MR_TRY(OpenPlace(connection, url));
  if (place.key.empty() || place.key.ends_with('/')) {
    return Fail(Code::kInvalidArgument, "{} names no object to write; add a key, as in s3://bucket/key", url);
  }
  MR_TRY(flags.CheckParts(place.store->limits()));
  MemoryBudget budget(context.DataBudget());
  object::Call call{.stop = context.stop};
  object::PutOptions put = flags.ForUpload(place.key);
  put.if_none_match = no_clobber;
  object::PutOptions given = put;
  given.content_type = flags.content_type;  // not the guess from the name
  transfer::MultipartWriter writer(*place.store, budget, place.key,
                                   {.part_bytes = flags.part_bytes.value_or(kPartBytes), .put = std::move(put)});
  Input input(context.stop);
  while (!context.globals.dry_run) {
    MutableByteSpan space = MR_TRY(writer.Space(call));
    std::size_t n = MR_TRY(input.Read(space));
    if (n == 0) break;
    MR_TRY(writer.Commit(n));
  }
  if (context.globals.dry_run) {
    Print("pipe {}\n", place.Name());
    return kExitOk;
  }
  auto finished = MR_TRY(writer.Finish(call));
  MetadataCheck().Look(*place.store, place.key, place.Name(), given, call);
  if (context.globals.json) {
    PrintJsonLine({{"source", "-"}, {"destination", place.Name()}, {"size", finished.size}, {"status", "ok"}});
  }
  return kExitOk;
}

void AddStreamCommands(CLI::App& app, Context& context) {
  auto urls = std::make_shared<std::vector<std::string>>();
  auto select = std::make_shared<SelectFlags>();
  CLI::App* cat = AddCommand(app, context, "cat", "Write objects to standard output",
                             "  millrace cat s3://bucket/a.jsonl | head\n"
                             "  millrace cat 's3://bucket/part-*' > whole\n",
                             [&context, urls, select] {
                               return WithConnection(context, [&](object::Connection& connection) {
                                 return CatObjects(context, connection, *urls, *select);
                               });
                             });
  cat->add_option("URL", *urls, "s3://bucket/key, hf://OWNER/MODEL/file or a path; wildcards * ? [a-z]")->required();
  select->AddTo(*cat);
  select->AddBookkeepingTo(*cat);
  select->view.AddTo(*cat, true);

  struct PipeFlags {
    std::string url;
    WriteFlags write;
    bool no_clobber = false;
  };
  auto flags = std::make_shared<PipeFlags>();
  CLI::App* pipe = AddCommand(app, context, "pipe", "Write standard input to an object",
                              "  tar c data | millrace pipe s3://bucket/data.tar\n", [&context, flags] {
                                return WithConnection(context, [&](object::Connection& connection) {
                                  return WriteStream(context, connection, flags->url, flags->write, flags->no_clobber);
                                });
                              });
  pipe->add_option("URL", flags->url, "s3://bucket/key")->required();
  flags->write.AddTo(*pipe);
  pipe->add_flag("-n,--no-clobber", flags->no_clobber, "Fail if the object exists");
}

}  // namespace millrace::cli
