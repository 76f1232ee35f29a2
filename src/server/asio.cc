// Asio and Beast, compiled once.
// Beast 1.81 asserts five bytes where a last chunk that is also the first comes back with four
// ("0\r\n\r"): anyone could end the program so. Without the assertion it asks for more, as it
// should.
#define BOOST_DISABLE_ASSERTS
#include <boost/asio/impl/src.hpp>
#include <boost/asio/ssl/impl/src.hpp>
#include <boost/beast/src.hpp>
