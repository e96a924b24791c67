cpdef object crc32c(object buffers, object value=*)
