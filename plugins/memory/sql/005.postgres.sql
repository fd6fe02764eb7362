CREATE INDEX memory_large ON memory_entries (space) WHERE bytes > 8192;
CREATE INDEX memory_exponents ON memory_entries (space) WHERE glob('*[0-9][eE][-+0-9]*', content);
