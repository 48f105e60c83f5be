-- Submits move large payloads beside their rows themselves: a trigger would cost every row that is added.
-- Processes of older releases that are still open leave them in the rows, where they are read as well.
drop trigger packhorse_body_in;
