#include "millrace/object/s3/protocol/xml.h"

#include <gtest/gtest.h>

#include "millrace/xml/xml.h"

namespace millrace::object::s3 {
namespace {

constexpr std::string_view kHead = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";

TEST(PeekContinuationTest, TellsOnlyWhatIsCertain) {
  const std::string more = "<IsTruncated>true</IsTruncated>",
                    token = "<NextContinuationToken>1/a b==</NextContinuationToken>";
  EXPECT_EQ(PeekContinuation("<ListBucketResult>" + token + more), "1/a b==");
  EXPECT_EQ(PeekContinuation(more + "<Key>x</Key>" + token), "1/a b==");
  for (const std::string& body : {std::string(), more, token, token + "<IsTruncated>false</IsTruncated>",
                                  more + "<NextContinuationToken>a&amp;b</NextContinuationToken>",
                                  more + "<NextContinuationToken>cut", more + "&lt;NextContinuationToken&gt;a&lt;"}) {
    EXPECT_EQ(PeekContinuation(body), "") << body;
  }
}

TEST(ListPage, IsDecodedWhereTheAnswerSaysItIsEncoded) {
  auto page = ParseListPage(std::string(kHead) + R"(
    <ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
      <Name>b</Name><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>
      <NextContinuationToken>a+b%20=</NextContinuationToken>
      <Contents><Key>with+space/%E4%B8%AD%2B</Key><LastModified>2026-01-31T12:00:00.000Z</LastModified>
        <ETag>&quot;abc-2&quot;</ETag><Size>18446744073709551615</Size></Contents>
      <CommonPrefixes><Prefix>p%0A/</Prefix></CommonPrefixes>
    </ListBucketResult>)");
  ASSERT_TRUE(page) << page.error().ToString();
  ASSERT_EQ(page->objects.size(), 1u);
  EXPECT_EQ(page->objects[0].key, "with space/中+");
  EXPECT_EQ(page->objects[0].etag, "abc-2");
  EXPECT_EQ(page->objects[0].size, ~std::uint64_t{0});
  EXPECT_EQ(page->common_prefixes, std::vector<std::string>{"p\n/"});
  EXPECT_EQ(page->continuation, "a+b%20=") << "tokens are opaque";
}

TEST(ListPage, IsTakenAsItIsOtherwise) {
  auto page = ParseListPage(
      "<ListBucketResult><Contents><Key> a%20+&amp;&#x4e2d;</Key><Size> 7\n</Size><LastModified>2026-01-31T12:00:00Z"
      "</LastModified></Contents><Contents><Key> </Key><Size>0</Size><LastModified>2026-01-31T12:00:00Z"
      "</LastModified></Contents></ListBucketResult>");
  ASSERT_TRUE(page) << page.error().ToString();
  EXPECT_EQ(page->objects[0].key, " a%20+&中");
  EXPECT_EQ(page->objects[1].key, " ") << "a space can be a whole key";
  EXPECT_EQ(page->continuation, "");
}

TEST(ListPage, RefusesWhatItCannotTrust) {
  for (std::string_view bad : {
           "",
           "not xml",
           "<html><body>502</body></html>",
           "<ListBucketResult>",
           "<ListBucketResult><Contents><Key>k</Key><Size>-1</Size></Contents></ListBucketResult>",
           "<ListBucketResult><Contents><Key>k</Key><Size>1x</Size></Contents></ListBucketResult>",
           "<ListBucketResult><Contents><Key>k</Key><Size>1</Size></Contents></ListBucketResult>",
           "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
           "<ListBucketResult><Contents><Key>k</Key><Size></Size></Contents></ListBucketResult>",
       }) {
    auto page = ParseListPage(bad);
    ASSERT_FALSE(page) << bad;
    EXPECT_EQ(page.error().code(), Code::kCorrupt) << bad;
  }
}

TEST(ListPage, EntitiesOfADtdAreNotExpanded) {
  auto page = ParseListPage(
      "<!DOCTYPE x [<!ENTITY lol \"lollollol\"><!ENTITY lol2 \"&lol;&lol;\">]>"
      "<ListBucketResult><Contents><Key>&lol2;</Key><Size>1</Size><LastModified>2026-01-31T12:00:00Z</LastModified>"
      "</Contents></ListBucketResult>");
  if (page) {
    EXPECT_EQ(page->objects[0].key, "&lol2;");
  }
}

TEST(ListPage, DeepNestingIsHarmless) {
  std::string deep;
  for (int i = 0; i < 200'000; ++i) deep += "<a>";
  EXPECT_FALSE(ParseListPage(deep));
}

TEST(VersionsPage, KeepsTheOrderOfVersionsAndDeletions) {
  auto page = ParseVersionsPage(
      "<ListVersionsResult><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
      "<DeleteMarker><Key>a+b</Key><VersionId>2</VersionId><IsLatest>true</IsLatest>"
      "<LastModified>2026-01-31T12:00:00Z</LastModified></DeleteMarker>"
      "<Version><Key>a+b</Key><VersionId>1</VersionId><IsLatest>false</IsLatest><Size>7</Size><ETag>\"e\"</ETag>"
      "<LastModified>2026-01-30T12:00:00Z</LastModified></Version>"
      "<CommonPrefixes><Prefix>c%2F</Prefix></CommonPrefixes>"
      "<NextKeyMarker>a+b</NextKeyMarker><NextVersionIdMarker>1</NextVersionIdMarker></ListVersionsResult>");
  ASSERT_TRUE(page) << page.error().ToString();
  ASSERT_EQ(page->versions.size(), 2u);
  EXPECT_EQ(page->versions[0].info.key, "a b");
  EXPECT_TRUE(page->versions[0].deletion && page->versions[0].latest);
  EXPECT_EQ(page->versions[1].id, "1");
  EXPECT_EQ(page->versions[1].info.size, 7u);
  EXPECT_EQ(page->common_prefixes, std::vector<std::string>{"c/"});
  EXPECT_EQ(page->next_key, "a b");
  EXPECT_FALSE(ParseVersionsPage("<ListVersionsResult><IsTruncated>true</IsTruncated></ListVersionsResult>"));
}

TEST(ErrorDocument, IsReadFromS3AndFromTheTokenService) {
  auto s3 = ParseErrorDocument(
      "<Error><Code>PermanentRedirect</Code><Message>m</Message><Region>eu-west-1</Region><RequestId>r</RequestId>"
      "</Error>");
  EXPECT_EQ(s3.code, "PermanentRedirect");
  EXPECT_EQ(s3.region, "eu-west-1");
  EXPECT_EQ(s3.request_id, "r");
  auto sts = ParseErrorDocument(
      "<ErrorResponse><Error><Code>AccessDenied</Code></Error><RequestId>q</RequestId>"
      "</ErrorResponse>");
  EXPECT_EQ(sts.code, "AccessDenied");
  EXPECT_EQ(sts.request_id, "q");
  EXPECT_EQ(ParseErrorDocument("<html>502 Bad Gateway</html>").code, "");
}

TEST(ErrorDocument, IsToldFromASuccess) {
  EXPECT_TRUE(IsErrorDocument(std::string(kHead) + "<Error><Code>InternalError</Code></Error>"));
  // CompleteMultipartUpload keeps the connection alive with spaces before it knows.
  EXPECT_TRUE(IsErrorDocument("\n   <Error/>"));
  EXPECT_FALSE(IsErrorDocument("<CopyObjectResult><ETag>\"e\"</ETag></CopyObjectResult>"));
}

TEST(ListPage, TakesWhatServersGetWrong) {
  auto page = ParseListPage(
      "<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>100%</Key><Size>1</Size><LastModified>"
      "2026-01-31T12:00:00Z</LastModified></Contents><Contents><Key>d/</Key><Size></Size><LastModified>"
      "2026-01-31T12:00:00Z</LastModified></Contents></ListBucketResult>");
  ASSERT_TRUE(page) << page.error().ToString();
  EXPECT_EQ(page->objects[0].key, "100%") << "it says that it encodes, and does not";
  EXPECT_EQ(page->objects[1].size, 0u) << "a folder's marker without a size";
}

TEST(Roots, MayHaveOtherNames) {
  EXPECT_EQ(*ParseUploadId("<InitiateMultipartUpload><UploadId>7</UploadId></InitiateMultipartUpload>"), "7");
  EXPECT_TRUE(ParsePartsPage("<ListPartsResponse><UploadId>7</UploadId></ListPartsResponse>"));
  EXPECT_FALSE(ParseUploadId("<Error><UploadId>7</UploadId></Error>"));
}

TEST(Written, MayLackAnETag) {
  auto written = ParseWritten(
      "<CopyPartResult><ETag>&quot;e&quot;</ETag><ChecksumCRC32C>AAAAAA==</ChecksumCRC32C></CopyPartResult>");
  ASSERT_TRUE(written);
  EXPECT_EQ(written->etag, "e");
  EXPECT_EQ(written->checksum_crc32c, "AAAAAA==");
  EXPECT_EQ(ParseWritten("<CopyObjectResult/>")->etag, "");
}

TEST(Documents, EscapeWhatTheyCarry) {
  std::vector<VersionName> keys = {{"a&b<c>\"d\"", ""}, {"line\nand\rreturn\t", "v1"}};
  std::string text = DeleteDocument(keys);
  EXPECT_NE(text.find("<Key>a&amp;b&lt;c&gt;&quot;d&quot;</Key>"), text.npos) << text;
  EXPECT_NE(text.find("<Key>line&#xa;and&#xd;return&#x9;</Key><VersionId>v1</VersionId></Object>"), text.npos) << text;
  EXPECT_NE(text.find("&quot;</Key></Object>"), text.npos) << "a key alone names no version: " << text;
  text = CompleteDocument({{.number = 3, .etag = "e", .checksum = "AAAAAA=="}, {.number = 4, .etag = "f"}});
  EXPECT_NE(text.find("<Part><PartNumber>3</PartNumber><ETag>&quot;e&quot;</ETag><ChecksumCRC32C>AAAAAA=="), text.npos);
  EXPECT_NE(text.find("<Part><PartNumber>4</PartNumber><ETag>&quot;f&quot;</ETag></Part>"), text.npos);
}

TEST(Documents, SomeKeysFitNone) {
  EXPECT_TRUE(xml::Fits("中文\n\t"));
  EXPECT_FALSE(xml::Fits(std::string_view("a\0b", 3)));
  EXPECT_FALSE(xml::Fits("bell\x07"));
  EXPECT_FALSE(xml::Fits("\xEF\xBF\xBF"));
}

}  // namespace
}  // namespace millrace::object::s3
