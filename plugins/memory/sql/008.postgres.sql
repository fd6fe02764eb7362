-- each search reads all of what an index has not taken in yet, 4 MB by default
ALTER INDEX memory_text_words SET (gin_pending_list_limit = 64);
ALTER INDEX memory_forms_keys SET (gin_pending_list_limit = 64);
